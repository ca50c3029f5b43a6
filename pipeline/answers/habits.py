"""What a provider does to every answer, learned from its rows: does it bill the end token, which seams does it strip."""

from collections import Counter
from dataclasses import dataclass, field

SEAMS = ("reasoning_start", "reasoning_end", "content_start", "content_end")
"""Ends of the text fields, where servers strip white space."""

MIN_RATE = 0.005
"""A seam on which the model puts white space more rarely than this is taken for one on which it puts none."""

MIN_EXPECTED = 0.1
"""A provider that shows none at a seam is taken to strip it when so many of its rows should have shown some: rather a row too few than a wrong one."""

MIN_ROWS, MIN_VERIFIED = 4, 20
"""A provider is judged from so many rows of its own, or when so many rows of others are known from ids."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Of one provider."""

    bills_end: bool = True
    """Whether the end token is part of the billed count."""
    may_strip: frozenset[str] = frozenset(SEAMS)
    """Seams where this provider was never seen to show white space."""
    strips: frozenset[str] = frozenset()
    """Of these, the seams where the model does put white space, by other providers' rows or by ids."""


@dataclass(slots=True)
class Seen:
    """Counts over a provider's rows; bounded, and independent of the rows' order."""

    rows: int = 0
    stop_deltas: Counter[int] = field(default_factory=Counter)
    """Billed minus rebuilt on plain answers that ended by themselves; only -1 and 0 are kept apart."""
    length_deltas: Counter[int] = field(default_factory=Counter)
    shown: Counter[str] = field(default_factory=Counter)
    """Rows whose text has white space at a seam."""
    emitted: Counter[str] = field(default_factory=Counter)
    """Rows whose verified ids have white space at a seam."""
    verified: int = 0

    def add(self, other: "Seen") -> None:
        """Take in another's counts."""
        self.rows += other.rows
        self.verified += other.verified
        for mine, theirs in (
            (self.stop_deltas, other.stop_deltas),
            (self.length_deltas, other.length_deltas),
        ):
            mine.update(theirs)
        self.shown.update(other.shown)
        self.emitted.update(other.emitted)


def learn(seen: dict[str | None, Seen]) -> dict[str | None, Habits]:
    """Habits of each provider, from all providers' rows."""
    habits = {}
    for provider, own in seen.items():
        others = Seen()
        for name, counts in seen.items():
            if name != provider:
                others.add(counts)
        may_strip = frozenset(seam for seam in SEAMS if not own.shown[seam])
        judged = own.rows >= MIN_ROWS or others.verified >= MIN_VERIFIED
        strips = frozenset(seam for seam in may_strip if judged and _rate(own, others, seam) >= max(MIN_RATE, MIN_EXPECTED / max(1, own.rows)))
        habits[provider] = Habits(bills_end(own), may_strip, strips)
    return habits


def bills_end(own: Seen) -> bool:
    """Whether the end token is billed: not when being one short is the rule on stops, and not the rule on cut answers."""
    short = own.stop_deltas[-1] > own.stop_deltas[0]
    return not (short and own.length_deltas[-1] <= own.length_deltas[0])


def _rate(own: Seen, others: Seen, seam: str) -> float:
    """Share of answers in which the model put white space at a seam, as far as it is known."""
    if own.verified:
        return own.emitted[seam] / own.verified
    if not others.rows:
        return 0.0
    return max(others.shown[seam] / others.rows, others.emitted[seam] / others.verified if others.verified else 0.0)
