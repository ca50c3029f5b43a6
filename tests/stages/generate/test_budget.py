"""No cap is ever passed, by arithmetic and by the account of a server."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.generate_budget import play
from pipeline.stages.generate.config import BudgetSection
from pipeline.stages.generate.ledger.records import NO_CHARGE, Charge
from pipeline.stages.generate.limits.budget import Budget, Cap
from pipeline.stages.generate.limits.money import PICO, Price, most_prompt_tokens, to_pico
from tests.stages.generate.chat_server import ScriptedReply, good
from tests.stages.generate.conftest import Bench

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(12))
def test_the_servers_account_never_passes_a_cap(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIE_STORE", "unset")  # so that the scene's own value is taken back afterwards
    assert not play(seed)["passed"]


def test_sixty_four_workers_at_the_edge_of_the_cap_send_one_request(bench: Bench) -> None:
    price = {"prompt": 0, "completion": 200}  # 100 tokens at most: $0.02 a request
    bench.provider = {"kind": "openai", "concurrency": 64, "max_price": price}
    bench.server.script = lambda *_: good(cost=0.018, delay=0.05)
    bench.dataset_budget = {"usd": 1.0}
    bench.ask(*(f"first {number}" for number in range(54)))  # 54 x 0.018 = 0.972
    rows = bench.ask(*(f"then {number}" for number in range(64)))
    assert sum(row["error"] is None for row in rows) == 1
    assert bench.server.billed <= 1.0


def test_spending_adds_up_over_edits_of_the_sampling(bench: Bench) -> None:
    bench.dataset_budget = {"completion_tokens": 104}
    assert bench.ask("a")[0]["error"] is None
    bench.sampling = {"temperature": 0.5}
    assert bench.run()[0]["error"]["kind"] == "not_asked"


def test_a_lost_request_counts_against_the_cap_with_its_worst_case(bench: Bench) -> None:
    bench.provider = {"retry": {"repay": 0}, "concurrency": 1}
    bench.dataset_budget = {"completion_tokens": 199}
    bench.server.script = lambda *_: ScriptedReply(drop=True)
    rows = bench.ask("a", "b")
    assert [row["error"]["kind"] for row in rows] == ["disconnected", "not_asked"]


def test_the_build_budget_holds_for_all_datasets_together(bench: Bench) -> None:
    bench.budget = {"completion_tokens": 104}
    assert bench.ask("a")[0]["error"] is None
    bench.dataset = "other"
    assert bench.ask("b")[0]["error"]["kind"] == "not_asked"


@settings(deadline=None, max_examples=200)
@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 50), st.floats(0, 1)), max_size=60),
    st.integers(1, 8),
)
def test_spent_and_reserved_stay_under_the_cap_whatever_the_order(
    cap: int, requests: list[tuple[int, int, float]], at_once: int
) -> None:
    limited = Cap("dataset budget", BudgetSection(usd=cap / PICO, completion_tokens=100), *NO_CHARGE)
    budget = Budget((limited, Cap("build budget", BudgetSection(), *NO_CHARGE)))
    in_flight: list[tuple[Charge, Charge]] = []
    charged = tokens = 0
    for pico, count, share in requests:
        if budget.reserve(Charge(pico, count)):
            in_flight.append((Charge(pico, count), Charge(int(pico * share), int(count * share))))
        assert charged + sum(most.pico for most, _ in in_flight) <= cap
        assert tokens + sum(most.tokens for most, _ in in_flight) <= 100
        if len(in_flight) >= at_once:
            most, real = in_flight.pop(0)
            budget.settle(most, real)
            charged, tokens = charged + real.pico, tokens + real.tokens


@given(st.text(max_size=200), st.integers(1, 5))
def test_the_bound_on_prompt_tokens_is_no_less_than_the_bytes(text: str, messages: int) -> None:
    assert most_prompt_tokens(len(text.encode()), messages) >= len(text.encode())


def test_dollars_become_picodollars_rounded_up() -> None:
    assert to_pico(0.1) == PICO // 10
    assert to_pico(1e-13) == 1
    assert Price(3, 7, 11).cost(2, 5) == 11 + 6 + 35


def test_two_thousand_at_the_edge_of_the_cap_end_without_waking_each_other_over_and_over(bench: Bench) -> None:
    bench.provider = {"concurrency": 500}
    bench.dataset_budget = {"completion_tokens": 10_000}  # a hundred fit at a time, at five tokens each; 1,981 in all
    rows = bench.ask(*map(str, range(2500)))
    assert sum(row["error"] is None for row in rows) == 1981
