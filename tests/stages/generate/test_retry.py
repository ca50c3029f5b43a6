"""The decision to ask a prompt again, as a table."""

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.stages.generate.config import RetrySection
from pipeline.stages.generate.limits.retry import Tries, next_step
from pipeline.stages.generate.provider.classify import Outcome, Verdict

RETRY = RetrySection(attempts=3, repay=1, base=1, max_wait=8, server_wait=100)
FREE = Outcome(Verdict.RETRY, "connect")
PAID = Outcome(Verdict.RETRY, "provider_error", cost_pico=5)
UNCERTAIN = Outcome(Verdict.RETRY, "deadline", cost_pico=None)
EMPTY = Outcome(Verdict.RETRY, "empty_zero_tokens", cost_pico=5, provider="A")
FREE_EMPTY = Outcome(Verdict.RETRY, "empty_zero_tokens", cost_pico=0, provider="A")
EMPTY_OF_B = Outcome(Verdict.RETRY, "empty_zero_tokens", cost_pico=5, provider="B")
EMPTY_OF_NOBODY = Outcome(Verdict.RETRY, "empty_zero_tokens", cost_pico=0)
BUSY = Outcome(Verdict.RETRY, "http_429", crowded=True)


class Case(NamedTuple):
    label: str
    outcomes: list[Outcome]
    verdict: Verdict
    may_pay_twice: bool = False


CASES = [
    Case("an answer", [Outcome(Verdict.ANSWER, "ok")], Verdict.ANSWER),
    Case("a refusal of the row", [Outcome(Verdict.FAIL, "http_400")], Verdict.FAIL),
    Case("a refusal of everything", [Outcome(Verdict.STOP, "http_401")], Verdict.STOP),
    Case("free failures up to the last attempt", [FREE] * 2, Verdict.RETRY),
    Case("free failures use up the attempts", [FREE] * 3, Verdict.FAIL),
    Case("a lost answer is asked for once more", [UNCERTAIN], Verdict.RETRY, True),
    Case("but not twice", [UNCERTAIN, UNCERTAIN], Verdict.FAIL),
    Case("a paid failure counts the same", [PAID, UNCERTAIN], Verdict.FAIL),
    Case("an empty answer is asked for once more", [EMPTY], Verdict.RETRY, True),
    Case("and then it is what it is", [EMPTY, EMPTY], Verdict.FAIL),
    Case("so with a provider whose name is not known", [EMPTY_OF_NOBODY] * 2, Verdict.FAIL),
    Case("rate limits do not use up attempts", [BUSY] * 50, Verdict.RETRY),
    Case("nor do they hide failures", [*[BUSY] * 50, FREE, FREE, FREE], Verdict.FAIL),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_table(case: Case) -> None:
    tries = Tries()
    for outcome in case.outcomes:
        tries = tries.after(outcome)
        step = next_step(outcome, tries, RETRY, 0.5)
    assert (step.verdict, step.may_pay_twice) == (case.verdict, case.may_pay_twice)


@pytest.mark.parametrize(
    ("outcomes", "elsewhere", "verdict", "barren"),
    [
        ([EMPTY], False, Verdict.RETRY, set()),
        ([EMPTY, EMPTY], False, Verdict.FAIL, {"A"}),
        ([EMPTY, EMPTY], True, Verdict.RETRY, {"A"}),
        ([FREE_EMPTY, FREE_EMPTY], False, Verdict.FAIL, {"A"}),
        ([EMPTY, EMPTY_OF_B], False, Verdict.RETRY, set()),
        ([EMPTY, EMPTY, EMPTY_OF_B], True, Verdict.RETRY, {"A"}),
        ([EMPTY, EMPTY_OF_B, EMPTY, EMPTY_OF_B], True, Verdict.FAIL, {"A", "B"}),
    ],
)
def test_a_provider_that_gives_nothing_is_asked_once_more_and_others_as_often_as_may_be_paid(
    outcomes: list[Outcome], elsewhere: bool, verdict: Verdict, barren: set[str]
) -> None:
    tries = Tries()
    for outcome in outcomes:
        tries = tries.after(outcome)
    step = next_step(outcomes[-1], tries, RETRY.model_copy(update={"repay": 3}), 0.5, elsewhere=elsewhere)
    assert (step.verdict, set(tries.barren)) == (verdict, barren)


def test_repay_zero_never_pays_twice() -> None:
    never = RETRY.model_copy(update={"repay": 0})
    for outcome in (PAID, UNCERTAIN, EMPTY):
        assert next_step(outcome, Tries().after(outcome), never, 0.5).verdict is Verdict.FAIL


def test_thirty_workers_told_to_wait_come_back_at_different_moments_and_none_too_early() -> None:
    told = Outcome(Verdict.RETRY, "http_429", crowded=True, asked_wait=20.0)
    steps = [next_step(told, Tries().after(told), RETRY, number / 30) for number in range(30)]
    assert min(step.wait for step in steps) >= 20
    assert len({step.wait for step in steps}) >= 25
    assert all(step.cooldown == 20 for step in steps)


def test_a_huge_wait_is_cut_and_reported() -> None:
    told = Outcome(Verdict.RETRY, "http_429", crowded=True, asked_wait=86400.0)
    step = next_step(told, Tries().after(told), RETRY, 0.0)
    assert (step.wait, step.cut_wait) == (100, 86400)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.booleans())
def test_backoff_stays_between_half_and_one_and_a_half_of_its_cap(count: int, chance: float, crowded: bool) -> None:
    outcome = BUSY if crowded else FREE
    tries = Tries(crowded=count) if crowded else Tries(unbilled=count)
    step = next_step(outcome, tries, RETRY.model_copy(update={"attempts": 20_000}), chance)
    assert 0.5 * min(8, 2.0 ** min(count - 1, 30)) <= step.wait <= 12
