"""The decision whether and when a prompt is asked again: one pure function."""

from dataclasses import dataclass, replace

from pipeline.stages.generate.config import RetrySection
from pipeline.stages.generate.provider.classify import Outcome, Verdict

_MOST_EMPTY = 2
"""Answers of zero tokens that one provider may give a prompt; a further one would cost the same for nothing again."""


@dataclass(frozen=True, slots=True)
class Tries:
    """Failures of a prompt in this run."""

    unbilled: int = 0
    """Failures that cost nothing."""
    billed: int = 0
    """Failures that were, or may have been, billed."""
    empty: tuple[str | None, ...] = ()
    """The provider of each answer of zero tokens."""
    crowded: int = 0
    """Times that the server asked to send less."""

    def after(self, outcome: Outcome, *, probing: bool = False) -> "Tries":
        """Count one more outcome.

        ``probing``: the server is known to be down, so a free failure says nothing about the prompt.
        """
        if probing and outcome.outage and outcome.cost_pico == 0:
            return self
        if outcome.crowded:
            return replace(self, crowded=self.crowded + 1)
        empty = (*self.empty, outcome.provider) if outcome.kind == "empty_zero_tokens" else self.empty
        billed = outcome.cost_pico != 0
        return replace(self, empty=empty, billed=self.billed + billed, unbilled=self.unbilled + (not billed))

    @property
    def barren(self) -> tuple[str | None, ...]:
        """Providers that are not asked again for this prompt: each gave an answer of zero tokens twice."""
        return (
            tuple({provider for provider in self.empty if self.empty.count(provider) >= _MOST_EMPTY})
            if self.empty
            else ()
        )


@dataclass(frozen=True, slots=True)
class NextStep:
    """The decision about a prompt after an outcome."""

    verdict: Verdict
    wait: float = 0.0
    """Seconds before it is asked again."""
    may_pay_twice: bool = False
    """The failed request may have been billed, and so may the next."""
    cooldown: float = 0.0
    """Seconds for which nobody should ask the provider that refused: what it asked of one request holds for all."""
    cut_wait: float | None = None
    """Seconds that the server asked for, when the config allows less."""


def next_step(
    outcome: Outcome, tries: Tries, retry: RetrySection, chance: float, *, elsewhere: bool = False
) -> NextStep:
    """Decide what follows ``outcome``, which ``tries`` counts already.

    ``chance`` in [0, 1) spreads the waits, so that not all prompts return at once. ``elsewhere``: some admitted
    provider is not in `Tries.barren`.
    """
    if outcome.verdict is not Verdict.RETRY:
        return NextStep(outcome.verdict)
    if tries.unbilled >= retry.attempts or tries.billed > retry.repay or (tries.barren and not elsewhere):
        return NextStep(Verdict.FAIL)
    may_pay_twice = outcome.cost_pico != 0
    if outcome.asked_wait is None:
        failures = tries.crowded if outcome.crowded else tries.unbilled + tries.billed
        backoff = min(retry.max_wait, retry.base * 2.0 ** min(failures - 1, 30))
        wait = backoff * (0.5 + chance)
        known = outcome.crowded and outcome.provider is not None
        return NextStep(Verdict.RETRY, wait, may_pay_twice, cooldown=wait if known else 0.0)
    asked = min(outcome.asked_wait, retry.server_wait)
    return NextStep(
        Verdict.RETRY,
        wait=asked + chance * max(retry.base, asked / 4),
        may_pay_twice=may_pay_twice,
        cooldown=asked if outcome.crowded or outcome.outage else 0.0,
        cut_wait=outcome.asked_wait if outcome.asked_wait > asked else None,
    )
