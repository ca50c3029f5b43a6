"""The stage as a whole, over real HTTP, against a real ledger."""

import io

import pytest
from rich.console import Console

from pipeline.commands.store import collect, stats
from pipeline.core.errors import BudgetError, ProviderError
from pipeline.stages.generate.ledger.connection import opened
from tests.stages.generate.chat_server import error, good
from tests.stages.generate.conftest import Bench


def test_every_prompt_gets_a_row_in_prompt_order(bench: Bench) -> None:
    bench.server.script = lambda text, nth: good(f"answer to {text}", delay=0.05 if text == "a" else 0)
    rows = bench.ask("a", "b", "c")
    assert [row["id"] for row in rows] == ["p0", "p1", "p2"]
    assert [row["response"]["choices"][0]["message"]["content"] for row in rows] == [
        "answer to a",
        "answer to b",
        "answer to c",
    ]
    assert all(
        row["error"] is None and row["policy"] is None and row["attempts"] == 1 and row["cost_usd"] == 0.00002
        for row in rows
    )


def test_a_second_run_sends_nothing_and_changes_nothing(bench: Bench) -> None:
    bench.ask("a", "b")
    before = {path.name: path.read_bytes() for path in bench.build.iterdir()}
    bench.run()
    assert len(bench.server.asked) == 2
    assert {path.name: path.read_bytes() for path in bench.build.iterdir()} == before


def test_an_added_prompt_costs_one_request(bench: Bench) -> None:
    bench.ask("a", "b")
    bench.ask("a", "new", "b")
    assert sorted(bench.server.asked) == ["a", "b", "new"]


def test_prompts_anywhere_between_answered_ones_are_asked(bench: Bench) -> None:
    """The prompts before the first new one are passed over unread: none of the others may be."""
    texts = [str(number) for number in range(300)]
    bench.ask(*texts)
    texts[130:130] = ["early", "late"]
    bench.ask(*texts, "last", "early")
    assert sorted(bench.server.asked[300:]) == ["early", "last", "late"]
    bench.ask("first", *texts)
    assert bench.server.asked[303:] == ["first"]


def test_budget_stops_before_it_is_passed(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.dataset_budget = {
        "completion_tokens": 120
    }  # one worst case of 100 fits; five are used; so one more fits, and so on until 20 are left
    rows = bench.ask(*"abcdefgh")
    assert sum(row["error"] is None for row in rows) == 5
    assert bench.summary()["not_asked"] == 3
    assert (
        f"3 prompts have no answer, and they can cost ${bench.summary()['remaining_usd']:.4f} at most"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize(("prices", "dollars"), [({"prompt": 1.0, "completion": 10.0}, True), ({}, False)])
def test_a_server_of_ones_own_is_priced_by_the_config(bench: Bench, prices: dict[str, float], dollars: bool) -> None:
    bench.provider = {"kind": "openai", "max_price": prices}
    bench.dataset_budget = {"completion_tokens": 0}
    bench.ask("a")
    assert (bench.summary()["remaining_usd"] > 0.001) is dollars


def test_budget_can_fail_the_build(bench: Bench) -> None:
    bench.dataset_budget = {"usd": 0.0, "on_exhausted": "fail"}
    with pytest.raises(BudgetError, match=r"dataset budget\.usd 0"):
        bench.ask("a")
    assert bench.server.asked == []
    assert bench.rows()[0]["error"]["kind"] == "not_asked"


def test_an_answer_that_was_dropped_from_the_ledger_is_not_shown_as_one_while_it_is_not_asked_again(
    bench: Bench,
) -> None:
    bench.ask("a", "b")
    with opened(bench.folder / "store") as db:
        collect(db, 0, [], really=True)
    bench.dataset_budget = {"usd": 0.0}
    assert [row["error"]["kind"] for row in bench.run()] == ["not_asked", "not_asked"]
    assert bench.summary()["answered"] == 0


def test_a_providers_name_may_be_anything(bench: Bench) -> None:
    bench.server.script = lambda text, nth: good(provider="[/bold]")
    (row,) = bench.ask("a")
    assert row["provider"] == "[/bold]"


def test_a_refused_policy_names_each_endpoint_and_why(bench: Bench) -> None:
    bench.provider = {"deny": ["Alpha"]}
    with pytest.raises(ProviderError, match=r"Alpha \(alpha\): in provider.deny"):
        bench.ask("a")


def test_the_stores_table_counts_what_was_sent_and_fits_80_columns(bench: Bench) -> None:
    """A request whose row was written and which a signal then kept from leaving is neither sent nor failed."""
    bench.dataset = "a_dataset_with_quite_a_long_name"
    bench.server.script = lambda text, _: error(400) if text == "bad" else good()
    bench.ask("a", "b", "bad")
    with opened(bench.folder / "store") as db:
        db.execute("INSERT INTO requests VALUES(100, 'k', ?, 'real', 1, 7, 7, 0)", (bench.dataset,))
        db.execute(
            """INSERT INTO results(attempt, state, charge_pico, charge_tokens, kind)
            VALUES(100, 'failed', 0, 0, 'unsent')"""
        )
        console = Console(file=io.StringIO(), width=80)
        console.print(stats(db, bench.folder / "store"))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert next(line for line in lines if line.lstrip().startswith("a_dataset")).split()[1:] == [
        "real",
        "3",
        "2",
        "1",
        "0",
        "10",
        "$0.0000",
        "$0.0000",
    ]
    for name in ("dataset", "money", "sent", "answers", "failed", "open", "tokens", "spent", "or up to"):
        assert any(name in line for line in lines), name
