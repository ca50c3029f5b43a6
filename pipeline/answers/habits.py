"""What a provider does to every answer, learned from its rows: does it bill the end token, which seams does it strip."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

SAMPLE_ROWS = 256
"""Rows of each provider from which its habits are learned."""

SEAMS = ("reasoning_start", "reasoning_end", "content_start", "content_end")
"""Ends of the text fields, where servers strip white space."""

WHITE_SPACE = ("\n", "\n\n", " ", " \n")
"""What models put at a seam, where nothing better is known."""

STRIPPED_WITH = {"reasoning_start": "content_start", "content_end": "content_start"}
"""A seam, and the one without which no known server strips it. White space before the close of the reasoning says nothing of its beginning: old
SGLang trims the whole text before it splits the reasoning off, and keeps the first while it loses the second."""

MIN_RATE = 0.005
"""A seam on which the model puts white space more rarely than this is taken for one on which it puts none."""

MIN_EXPECTED = 0.25
"""A provider that shows none at a seam is taken to strip it when so many of its rows should have shown some: rather a row too few than a wrong one."""

MIN_ROWS, MIN_VERIFIED = 4, 20
"""A provider is judged from so many rows of its own, or when so many rows of others are known from ids."""

MAX_SPACES, MAX_LENGTH = 64, 8
"""Kinds of white space told apart, and the longest that is looked at whole."""

MIN_RESPACED = 4
"""A provider is taken to write arguments anew when so many of its rows say so, and more than say the contrary."""

Space = tuple[str, str]
"""(seam, white space there)"""

Spaces = dict[str, tuple[str, ...]]
"""Seam to the white space that may have been stripped there."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Of one provider."""

    bills_end: bool = True
    """Whether the end token is part of the billed count."""
    may_strip: Spaces = field(default_factory=lambda: dict.fromkeys(SEAMS, WHITE_SPACE))
    """Seams where this provider was never seen to show white space."""
    strips: Spaces = field(default_factory=dict)
    """Of these, the seams where the model does put white space, by other providers' rows or by ids."""
    verified: bool = False
    """Whether `may_strip` is what rows with known ids lost at this very provider."""
    respaces: bool = False
    """Whether it writes the spaces of tool calls' arguments anew."""


UNKNOWN = Habits()
"""Of a provider that nothing is known of."""


@dataclass(slots=True)
class Seen:
    """Counts over a provider's rows; bounded, and independent of the rows' order."""

    rows: int = 0
    stop_deltas: Counter[int] = field(default_factory=Counter)
    """Billed minus rebuilt on plain answers that ended by themselves; only -1 and 0 are counted."""
    length_deltas: Counter[int] = field(default_factory=Counter)
    """The same on answers that were cut."""
    texts: Counter[str] = field(default_factory=Counter)
    """Rows whose text has reasoning, or content."""
    shown: Counter[Space] = field(default_factory=Counter)
    """Rows whose text has white space at a seam."""
    verified: int = 0
    """Rows whose ids are known."""
    emitted: Counter[Space] = field(default_factory=Counter)
    """Rows whose known ids have white space at a seam."""
    lost: Counter[Space] = field(default_factory=Counter)
    """Rows whose known ids have white space at a seam where the text has none."""
    spaced: int = 0
    """Rows whose ids or bill say that the arguments of their calls are as the model spaced them."""
    respaced: int = 0
    """Rows whose ids or bill say that the model spaced them otherwise."""

    def take(self, more: "Seen") -> None:
        """Take in counts of the same provider."""
        for item in fields(self):
            mine = getattr(self, item.name)
            if isinstance(mine, Counter):
                mine.update(getattr(more, item.name))
            else:
                setattr(self, item.name, mine + getattr(more, item.name))

    def add(self, other: "Seen") -> None:
        """Take in another's counts."""
        self.rows += other.rows
        self.verified += other.verified
        self.texts.update(other.texts)
        self.shown.update(other.shown)
        self.emitted.update(other.emitted)


def take_in(seen: dict[str | None, Seen], shown: Mapping[str | None, Seen], limit: int) -> None:
    """Add what a line shows of its provider, up to so many rows of each."""
    for provider, counts in shown.items():
        own = seen.setdefault(provider, Seen())
        if own.rows < limit:
            own.take(counts)


def spaces(reasoning: str, content: str) -> Iterator[Space]:
    """White space at the seams of an answer's texts."""
    for name, text in (("reasoning", reasoning), ("content", content)):
        if text[:1].isspace():
            yield f"{name}_start", text[: len(text) - len(text.lstrip())][:MAX_LENGTH]
        if text[-1:].isspace():
            yield f"{name}_end", text[len(text.rstrip()) :][-MAX_LENGTH:]


def learn(seen: dict[str | None, Seen]) -> dict[str | None, Habits]:
    """Habits of each provider, from all providers' rows."""
    habits = {}
    for provider, own in seen.items():
        others = Seen()
        for name, counts in seen.items():
            if name != provider:
                others.add(counts)
        habits[provider] = _habits(own, others)
    return habits


def bills_end(own: Seen) -> bool:
    """Whether the end token is billed: not when one short is the rule on stops, and not the rule on cut answers.

    A tie speaks against billing: an unbilled end and a text cut into one token more than usual make an exact count often, a billed end
    is hardly ever one short.
    """
    short, exact = own.stop_deltas[-1], own.stop_deltas[0]
    return not (short and short >= exact and own.length_deltas[-1] <= own.length_deltas[0])


def _habits(own: Seen, others: Seen) -> Habits:
    shown = {seam for seam, _ in own.shown}
    silent = [seam for seam in SEAMS if seam not in shown and STRIPPED_WITH.get(seam) not in shown]
    known = own.verified >= MIN_VERIFIED
    may_strip = {seam: _at(seam, own.lost) if known else WHITE_SPACE for seam in silent}
    strips = {seam: _at(seam, own.emitted, others.shown, others.emitted) for seam in silent if _strips(own, others, seam)}
    respaces = own.respaced >= MIN_RESPACED and own.respaced > own.spaced
    return Habits(bills_end(own), {seam: texts for seam, texts in may_strip.items() if texts}, strips, known, respaces)


def _at(seam: str, *counts: Counter[Space]) -> tuple[str, ...]:
    """White space seen at a seam, the most frequent first."""
    found: Counter[str] = Counter()
    for counter in counts:
        found.update({text: count for (name, text), count in counter.items() if name == seam})
    return tuple(sorted(found, key=lambda text: (-found[text], text))[:MAX_SPACES])


def _strips(own: Seen, others: Seen, seam: str) -> bool:
    """Whether a provider that never showed white space at a seam should have."""
    name = seam.partition("_")[0]
    rows = own.texts[name]
    if rows < MIN_ROWS and others.verified < MIN_VERIFIED:
        return False
    if own.verified:
        rate = _total(seam, own.emitted) / own.verified
    else:
        rate = max(_share(_total(seam, others.shown), others.texts[name]), _share(_total(seam, others.emitted), others.verified))
    return rate >= MIN_RATE and rows * rate >= MIN_EXPECTED


def _total(seam: str, counts: Counter[Space]) -> int:
    return sum(count for (name, _), count in counts.items() if name == seam)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
