"""Servers that bill more than was asked for, by their own account: the caps, the warning, and later runs."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.stages.generate.ledger.connection import opened
from pipeline.stages.generate.ledger.records import RequestRecord
from pipeline.stages.generate.ledger.statements import insert_requests, settle_orphans
from tests.stages.generate.chat_server import ENDPOINT, ScriptedReply, completion
from tests.stages.generate.conftest import Bench

LONG = 349
MOST = 30


def bill(tokens: int, usd: float | None = None, *, delay: float = 0.0, **changes: Any) -> ScriptedReply:
    usd = (10 + 2 * tokens) / 1e6 if usd is None else usd
    return ScriptedReply(
        body=json.dumps(completion(tokens=tokens, cost=usd, **changes)).encode(), billed=usd, delay=delay
    )


@pytest.fixture
def account(bench: Bench) -> list[int]:
    """Prepare a server that asks $1 and $2 per million tokens; return its own account of tokens."""
    bench.sampling = {"max_tokens": MOST}
    return []


def serve(bench: Bench, account: list[int], reply: Callable[[int], tuple[int, ScriptedReply]]) -> None:
    def script(_text: str, _nth: int) -> ScriptedReply:
        tokens, answer = reply(len(account))
        account.append(tokens)
        return answer

    bench.server.script = script


def warnings(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capfd.readouterr().err.splitlines() if " billed " in line and "From now on" in line]


@pytest.mark.parametrize("cap", [{"completion_tokens": 1200}, {"usd": 0.0024}], ids=str)
def test_forty_at_once_pass_a_cap_by_no_more_than_was_in_flight_and_a_rerun_asks_nothing(
    bench: Bench, account: list[int], cap: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    bench.provider = {"concurrency": 40}
    bench.dataset_budget = cap
    serve(bench, account, lambda _: (LONG, bill(LONG, delay=0.3)))
    bench.ask(*map(str, range(400)))
    assert len(account) <= 40
    (line,) = warnings(capfd)
    assert f"Alpha billed {LONG} tokens for a request of at most {MOST}: it does not obey max_tokens" in line
    assert f"the {len(account) - 1} in flight now can still pass a cap" in line
    sent = len(account)
    bench.ask(*map(str, range(500)))
    assert len(account) == sent


def test_two_at_a_time_under_both_caps_of_the_report(bench: Bench, account: list[int]) -> None:
    bench.provider = {"concurrency": 2}
    bench.dataset_budget = {"usd": 0.002, "completion_tokens": 400}
    serve(bench, account, lambda _: (LONG, bill(LONG, delay=0.05)))
    bench.ask(*map(str, range(40)))
    assert len(account) <= 2
    assert bench.server.billed <= 0.002


def test_a_growing_overshoot_is_told_once_and_passes_a_cap_by_its_growth_alone(
    bench: Bench, account: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    bench.provider = {"concurrency": 2}
    bench.dataset_budget = {"completion_tokens": 2000}
    serve(bench, account, lambda nth: (40 + 20 * nth, bill(40 + 20 * nth, delay=0.02)))
    bench.ask(*map(str, range(60)))
    assert sum(account) <= 2000 + 2 * 20
    assert len(warnings(capfd)) == 1
    sent = len(account)
    bench.ask(*map(str, range(70)))
    assert len(account) == sent


def two_providers(bench: Bench, account: list[int], served: list[str]) -> None:
    def script(_text: str, _nth: int) -> ScriptedReply:
        denied = bench.server.bodies[-1:] and bench.provider.get("deny")
        name = "Alpha" if denied or len(account) % 2 == 0 else "Beta"
        tokens = LONG if name == "Beta" else 20
        account.append(tokens)
        served.append(name)
        return bill(tokens, provider=name)

    bench.server.endpoints = [ENDPOINT, {**ENDPOINT, "provider_name": "Beta", "tag": "beta"}]
    bench.server.script = script


def test_of_two_providers_the_one_that_overshoots_is_named_and_counts_only_while_it_may_answer(
    bench: Bench, account: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    served: list[str] = []
    bench.provider = {"concurrency": 1}
    bench.dataset_budget = {"completion_tokens": 1200}
    two_providers(bench, account, served)
    bench.ask(*map(str, range(60)))
    assert sum(account) <= 1200
    (line,) = warnings(capfd)
    assert line.startswith(f"generate: Beta billed {LONG} tokens")
    sent = len(account)
    bench.ask(*map(str, range(70)))
    assert len(account) == sent
    bench.provider = {"concurrency": 1, "deny": ["Beta"]}
    bench.run()
    assert set(served[sent:]) == {"Alpha"}
    assert 1200 - MOST < sum(account) <= 1200


@pytest.mark.parametrize("together", [False, True])
def test_a_long_prompt_whose_reservation_covers_its_bill_does_not_hide_the_overshoot(
    bench: Bench, account: list[int], together: bool
) -> None:
    bench.provider = {"concurrency": 1}
    bench.dataset_budget = {"usd": 0.0035}
    serve(bench, account, lambda _: (1000, bill(1000)))
    if not together:
        bench.ask("long " * 600)
        bench.provider = {"concurrency": 40}
    bench.ask("long " * 600, *map(str, range(40)))
    assert bench.server.billed <= 0.0035
    assert len(account) == 1


def test_a_price_above_the_listed_one_is_told_and_counted(
    bench: Bench, account: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    bench.provider = {"concurrency": 1}
    bench.dataset_budget = {"usd": 0.01}
    serve(bench, account, lambda _: (20, bill(20, 0.003)))
    bench.ask(*map(str, range(40)))
    assert bench.server.billed <= 0.01
    assert len(account) == 3
    (line,) = warnings(capfd)
    assert "Alpha billed $0.003000" in line
    assert "its prices are above the listed ones" in line


def test_a_server_that_obeys_is_not_told_of(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.sampling = {"max_tokens": MOST}
    bench.server.script = lambda *_: bill(MOST)
    bench.ask(*map(str, range(10)))
    assert warnings(capfd) == []


def test_an_answer_that_is_lost_is_booked_with_the_excess_that_is_known(bench: Bench, account: list[int]) -> None:
    bench.provider = {"concurrency": 1, "retry": {"repay": 0}}
    serve(bench, account, lambda nth: (LONG, bill(LONG) if nth == 0 else ScriptedReply(drop=True)))
    bench.ask("a", "b")
    lost = next(attempt for attempt in bench.attempts() if attempt["state"] == "uncertain")
    assert lost["charge_tokens"] == LONG
    assert lost["charge_pico"] >= LONG * 2 * 1e6


def test_a_request_of_a_killed_generator_is_booked_with_the_excess_of_its_dataset(
    bench: Bench, account: list[int]
) -> None:
    serve(bench, account, lambda _: (LONG, bill(LONG)))
    bench.ask("a")
    with opened(bench.folder / "store") as db:
        for number, dataset in ((98, "some"), (99, "other")):
            insert_requests(
                db,
                [
                    RequestRecord(
                        id=number, key=str(number), dataset=dataset, purse="real", run=1, most_pico=5, most_tokens=MOST
                    )
                ],
            )
        assert settle_orphans(db) == 2
    charged = {attempt["id"]: attempt["charge_tokens"] for attempt in bench.attempts()}
    assert (charged[98], charged[99]) == (LONG, MOST)


def test_the_plan_of_a_later_run_counts_the_excess(
    bench: Bench, account: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    serve(bench, account, lambda _: (LONG, bill(LONG)))
    bench.ask("a")
    capfd.readouterr()
    bench.ask("a", "b", "c")
    assert f"and {2 * LONG} tokens" in capfd.readouterr().err
