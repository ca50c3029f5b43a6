"""Whether and when a prompt is asked again: one pure function."""

from dataclasses import dataclass, replace

from pipeline.stages.generate.config import RetrySection
from pipeline.stages.generate.provider.classify import Outcome, Verdict

_MOST_EMPTY = 2
"""Answers of zero tokens that one provider may give a prompt: each further one would be paid for with the same nothing."""


@dataclass(frozen=True, slots=True)
class Tries:
    """What a prompt has been through in this run."""

    unbilled: int = 0
    """Failures that cost nothing."""
    billed: int = 0
    """Failures that were, or may have been, billed."""
    empty: tuple[str | None, ...] = ()
    """Who gave an answer of zero tokens, each time."""
    crowded: int = 0
    """Times that the server said: not now."""

    def after(self, outcome: Outcome, *, probing: bool = False) -> "Tries":
        """Count one more outcome. ``probing``: the server is known to be down, so a free failure says nothing about the prompt."""
        if probing and outcome.outage and outcome.cost_pico == 0:
            return self
        if outcome.crowded:
            return replace(self, crowded=self.crowded + 1)
        empty = (*self.empty, outcome.provider) if outcome.kind == "empty_zero_tokens" else self.empty
        billed = outcome.cost_pico != 0
        return replace(self, empty=empty, billed=self.billed + billed, unbilled=self.unbilled + (not billed))

    @property
    def barren(self) -> tuple[str | None, ...]:
        """Providers that are not asked again for this prompt: they gave nothing once, and then nothing once more."""
        return (
            tuple({provider for provider in self.empty if self.empty.count(provider) >= _MOST_EMPTY})
            if self.empty
            else ()
        )


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next with a prompt."""

    verdict: Verdict
    wait: float = 0.0
    """Seconds before it is asked again."""
    may_pay_twice: bool = False
    """The failed request may have been billed, and so will the next."""
    cooldown: float = 0.0
    """Seconds that whoever refused should be left alone by all: what was asked of one holds for everyone."""
    cut_wait: float | None = None
    """What the server asked for, when it was more than the config lets it."""


def next_step(outcome: Outcome, tries: Tries, retry: RetrySection, chance: float, *, elsewhere: bool = False) -> Step:
    """Decide after ``outcome``; ``tries`` counts it already; ``chance`` in [0, 1) spreads the waits, so that not all come back at once.

    ``elsewhere``: some provider may be asked that is not `Tries.barren`.
    """
    if outcome.verdict is not Verdict.RETRY:
        return Step(outcome.verdict)
    if tries.unbilled >= retry.attempts or tries.billed > retry.repay or (tries.barren and not elsewhere):
        return Step(Verdict.FAIL)
    failures = tries.crowded if outcome.crowded else tries.unbilled + tries.billed
    backoff = min(retry.max_wait, retry.base * 2.0 ** min(failures - 1, 30))
    if outcome.asked_wait is None:
        wait = backoff * (0.5 + chance)
        return Step(
            Verdict.RETRY,
            wait,
            outcome.cost_pico != 0,
            wait if outcome.crowded and outcome.provider is not None else 0.0,
        )
    asked = min(outcome.asked_wait, retry.server_wait)
    wait = asked + chance * max(retry.base, asked / 4)
    cut = outcome.asked_wait if outcome.asked_wait > asked else None
    return Step(Verdict.RETRY, wait, outcome.cost_pico != 0, asked if outcome.crowded or outcome.outage else 0.0, cut)
