"""What a provider does to every answer, learned from its rows: does it bill the end token, which seams does it strip."""

import math
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

MIN_UNEXPLAINED = 4
"""So many bills that nothing explains say something of a provider, when they are more than a share of all."""

MAX_LOST, LOST_RATE = 4, 1 / 3
"""A provider whose bills are up to so many tokens above the text, on such a share of plain answers, is taken to strip what it never shows. Texts that were
cut otherwise than usual do the same, to some 7 % of rows of a large model and to a quarter of a small one's."""

IMPOSSIBLE_RATE = 0.2
"""A provider that bills less than its text by two tokens or more, on such a share of plain answers, does not count what the model emitted; one whose
bills are off so, or by more than white space costs, on such a share of answers with calls, writes the arguments anew."""

MIN_SHORT, SHORT_RATE = 2, 0.08
"""Between a provider that bills the end token, and so is hardly ever one short, and one that does not, and nearly always is, lies one of whom nothing can be said."""

SORTED_BITS = 7.0
"""Keys of so many kinds of arguments came in alphabetical order that chance explains it once in 2**7 times: the server sorts them."""

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
    shows_lines: tuple[str, ...] = ()
    """Seams where it shows line breaks at the very edge, as templates write them, and so does not strip them."""
    end_unclear: bool = False
    """Whether nobody can say if it bills the end token."""
    unclosed: bool = False
    """Whether so many of its answers with calls are one token short that slips of the model do not explain them."""
    unreliable: bool = False
    """Whether its bills count something else than what the model emitted."""
    rewrites: bool = False
    """Whether it writes tool calls' arguments anew in a way that their spacing does not explain."""
    sorts_keys: bool = False
    """Whether it writes the keys of tool calls' arguments in alphabetical order."""


UNKNOWN = Habits()
"""Of a provider that nothing is known of."""


@dataclass(slots=True)
class Seen:
    """Counts over a provider's rows; bounded, and independent of the rows' order."""

    rows: int = 0
    stop_deltas: Counter[int] = field(default_factory=Counter)
    """Billed minus rebuilt on plain answers without calls that ended by themselves; only -1 and 0 are counted."""
    length_deltas: Counter[int] = field(default_factory=Counter)
    """The same on answers that were cut."""
    plain_deltas: Counter[int] = field(default_factory=Counter)
    """All differences of such answers whose text spells out no marker, but those that another reading explains."""
    plain_rows: int = 0
    """How many such answers there are."""
    call_deltas: Counter[int] = field(default_factory=Counter)
    """The same of answers with calls, in the spacing of arguments that comes closer to the bill; -1 where only a reasoning that was never closed would
    explain it: a rare slip of the model, or no slip, and no end token billed."""
    call_rows: int = 0
    """How many such answers there are."""
    sorted_keys: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Keys of objects in calls' arguments, two or more in alphabetical order; escaped, since they may hold anything."""
    unsorted_keys: int = 0
    """Objects whose keys are in another order."""
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


def _ends(own: Seen) -> tuple[int, int]:
    """Answers that are one token short, and exact ones: those without calls, whose arguments no server wrote anew, where there are enough of them."""
    short, exact = own.stop_deltas[-1], own.stop_deltas[0]
    if short + exact >= MIN_ROWS:
        return short, exact
    return short + (own.call_deltas[-1] if own.call_deltas[-1] >= MIN_UNEXPLAINED else 0), exact + own.call_deltas[0]


def bills_end(own: Seen) -> bool:
    """Whether the end token is billed: not when one short is the rule on stops, and not the rule on cut answers.

    A tie speaks against billing: an unbilled end and a text cut into one token more than usual make an exact count often, a billed end
    is hardly ever one short.
    """
    short, exact = _ends(own)
    return not (short and short >= exact and own.length_deltas[-1] <= own.length_deltas[0])


def end_unclear(own: Seen) -> bool:
    """Whether too many answers are one short for a provider that bills the end token, and too few for one that does not.

    So it is where no end is billed and white space is stripped, which makes an exact count of what is one token short twice over. A provider that
    shows white space everywhere strips none: its short answers were cut.
    """
    short, exact = _ends(own)
    return MIN_SHORT <= short < exact and short >= SHORT_RATE * (short + exact)


def _often(deltas: Counter[int], rows: float, low: float, high: float) -> bool:
    """Whether more than a few bills, and more than so many rows, are above the text by `low` to `high` tokens."""
    return sum(count for delta, count in deltas.items() if low <= delta <= high) >= max(rows, MIN_UNEXPLAINED)


def sorts_keys(own: Seen) -> bool:
    """Whether every object's keys came in alphabetical order, and chance does not explain it. Each kind of object counts once: a tool's schema may be sorted."""
    return (
        not own.unsorted_keys and sum(math.log2(math.factorial(len(keys))) for keys in own.sorted_keys) >= SORTED_BITS
    )


def _habits(own: Seen, others: Seen) -> Habits:
    shown = {seam for seam, _ in own.shown}
    silent = [seam for seam in SEAMS if seam not in shown and STRIPPED_WITH.get(seam) not in shown]
    known = own.verified >= MIN_VERIFIED
    may_strip = {seam: _at(seam, own.lost) if known else WHITE_SPACE for seam in silent}
    ends_billed = bills_end(own)
    exact = 0 if ends_billed else -1
    loses = not own.verified and _often(own.plain_deltas, LOST_RATE * own.plain_rows, exact + 1, exact + MAX_LOST)
    rewrites = [
        _often(own.call_deltas, IMPOSSIBLE_RATE * own.call_rows, low, high)
        for low, high in ((-math.inf, exact - 2), (exact + MAX_LOST + 1, math.inf))
    ]
    strips = {
        seam: _at(seam, own.emitted, others.shown, others.emitted) or WHITE_SPACE
        for seam in silent
        if loses or _strips(own, others, seam)
    }
    return Habits(
        ends_billed,
        {seam: texts for seam, texts in may_strip.items() if texts},
        strips,
        known,
        respaces=own.respaced >= MIN_RESPACED and own.respaced > own.spaced,
        shows_lines=tuple(
            seam
            for seam in SEAMS
            if any(name == seam and text[0 if seam.endswith("start") else -1] == "\n" for name, text in own.shown)
        ),
        end_unclear=bool(silent) and end_unclear(own),
        unclosed=own.call_deltas[-1] >= MIN_UNEXPLAINED,
        unreliable=_often(own.plain_deltas, IMPOSSIBLE_RATE * own.plain_rows, -math.inf, exact - 2),
        rewrites=any(rewrites),
        sorts_keys=sorts_keys(own),
    )


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
        rate = max(
            _share(_total(seam, others.shown), others.texts[name]),
            _share(_total(seam, others.emitted), others.verified),
        )
    return rate >= MIN_RATE and rows * rate >= MIN_EXPECTED


def _total(seam: str, counts: Counter[Space]) -> int:
    return sum(count for (name, _), count in counts.items() if name == seam)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
