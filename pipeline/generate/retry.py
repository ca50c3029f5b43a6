"""Whether and when a prompt is asked again: one pure function."""

from dataclasses import dataclass, replace

from pipeline.generate.config import RetrySection
from pipeline.generate.judge import Outcome, Verdict

_EMPTY_AGAIN = 1
"""An answer of zero tokens is asked for once more: each try pays the prompt for the same nothing."""


@dataclass(frozen=True, slots=True)
class Tries:
    """What a prompt has been through in this run."""

    unbilled: int = 0
    """Failures that cost nothing."""
    billed: int = 0
    """Failures that were, or may have been, billed."""
    empty: int = 0
    """Answers of zero tokens."""
    crowded: int = 0
    """Times that the server said: not now."""

    def after(self, outcome: Outcome, *, probing: bool = False) -> "Tries":
        """Count one more outcome. ``probing``: the server is known to be down, so a free failure says nothing about the prompt."""
        if probing and outcome.outage and outcome.cost_pico == 0:
            return self
        if outcome.crowded:
            return replace(self, crowded=self.crowded + 1)
        if outcome.kind == "empty_zero_tokens":
            return replace(self, empty=self.empty + 1)
        return replace(self, unbilled=self.unbilled + 1) if outcome.cost_pico == 0 else replace(self, billed=self.billed + 1)


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next with a prompt."""

    verdict: Verdict
    wait: float = 0.0
    """Seconds before it is asked again."""
    may_pay_twice: bool = False
    """The failed request may have been billed, and so will the next."""
    pause_all: float = 0.0
    """Seconds that nothing at all should be sent: what the server asked of one holds for all."""
    cut_wait: float | None = None
    """What the server asked for, when it was more than the config lets it."""


def next_step(outcome: Outcome, tries: Tries, retry: RetrySection, chance: float) -> Step:
    """Decide after ``outcome``; ``tries`` counts it already; ``chance`` in [0, 1) spreads the waits, so that not all come back at once."""
    if outcome.verdict is not Verdict.RETRY:
        return Step(outcome.verdict)
    if tries.unbilled >= retry.attempts or tries.billed > retry.repay or tries.empty > min(_EMPTY_AGAIN, retry.repay):
        return Step(Verdict.FAIL)
    failures = tries.crowded if outcome.crowded else tries.unbilled + tries.billed + tries.empty
    backoff = min(retry.max_wait, retry.base * 2.0 ** min(failures - 1, 30))
    if outcome.asked_wait is None:
        return Step(Verdict.RETRY, backoff * (0.5 + chance), outcome.cost_pico != 0)
    asked = min(outcome.asked_wait, retry.server_wait)
    wait = asked + chance * max(retry.base, asked / 4)
    cut = outcome.asked_wait if outcome.asked_wait > asked else None
    return Step(Verdict.RETRY, wait, outcome.cost_pico != 0, asked if outcome.crowded else 0.0, cut)
