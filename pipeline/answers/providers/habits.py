"""Habits of a provider, learned from its rows: whether it bills the end token, which seams it strips, and more."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from pipeline.answers.prompts import NO_HABITS, PromptHabits, learn_prompts

SAMPLE_ROWS = 256
"""Rows of each provider from which its habits are learned."""

SEAMS = ("reasoning_start", "reasoning_end", "content_start", "content_end")
"""Ends of the text fields, where servers strip white space."""

WHITE_SPACE = ("\n", "\n\n", " ", " \n")
"""White space that models put at a seam, where nothing better is known."""

STRIPPED_WITH = {"reasoning_start": "content_start", "content_end": "content_start"}
"""Maps a seam to another one: no known server strips the first without the second. White space before the close of the
reasoning says nothing of its beginning: old SGLang trims the whole text before it splits the reasoning off, so it keeps
the first and loses the second."""

MIN_RATE = 0.005
"""Share of rows below which the model counts as putting no white space at a seam."""

MIN_EXPECTED = 0.25
"""A provider that shows no white space at a seam counts as stripping it when at least this many of its rows should have
shown some. This is low on purpose: a missing row costs little, a wrong one poisons training."""

MIN_ROWS, MIN_VERIFIED = 4, 20
"""Rows of its own from which a provider is judged, or rows of others with known ids."""

MAX_SPACES, MAX_LENGTH = 64, 8
"""Kinds of white space told apart, and the most characters of one that are examined."""

MIN_UNEXPLAINED = 4
"""Unexplained bills from which they say something of a provider, when they are more than a share of all."""

MAX_LOST, LOST_RATE = 4, 1 / 3
"""A provider counts as stripping what it never shows when its bills are up to `MAX_LOST` tokens above the text on more
than this share of plain answers. Texts that the model cut in an unusual way look the same: about 7 % of the rows of a
large model, a quarter of a small one's."""

MIN_ABOVE, ALONE_RATE = 2, 0.02
"""A provider without others to compare it with counts as stripping what it never shows when this many of its bills, and
this share of its plain answers, are up to `MAX_LOST` tokens above the text."""

IMPOSSIBLE_RATE = 0.2
"""A provider does not count what the model emitted when it bills at least two tokens less than its text on this share
of plain answers. It writes arguments anew when, on this share of answers with calls, its bills are as low, or too high
for white space to explain."""

MIN_SHORT, SHORT_RATE = 2, 0.08
"""A provider that bills the end token is hardly ever one token short, and one that does not nearly always is. Between
them, from this many rows and this share on, nothing can be said."""

SORTED_BITS = 7.0
"""A server sorts the keys of arguments when chance would order them alphabetically once in 2**7 times."""

MIN_PILED = 2
"""Different answers from which a longest bill counts as a limit, when none of them has room for an end token."""

MIN_LIMIT = 16
"""Shortest bill that counts as a limit: several answers of a few tokens have the same length by chance."""

MIN_GAPS = 4
"""Rows from which the usual difference between the bill and the returned ids is known."""

MIN_RESPACED = 4
"""Rows from which a provider counts as spacing arguments anew, when they are more than the rows that say otherwise."""

Space = tuple[str, str]
"""(seam, white space there)"""

Spaces = dict[str, tuple[str, ...]]
"""Seam to the white space that may have been stripped there."""


@dataclass(frozen=True, slots=True)
class Habits:
    """The things that one provider does to every answer."""

    bills_end: bool = True
    """True when the end token is part of the billed count."""
    may_strip: Spaces = field(default_factory=lambda: dict.fromkeys(SEAMS, WHITE_SPACE))
    """Seams where this provider was never seen to show white space."""
    strips: Spaces = field(default_factory=dict)
    """Of these, the seams where the model does put white space, by other providers' rows or by ids."""
    verified: bool = False
    """True when `may_strip` is what rows with known ids lost at this very provider."""
    respaces: bool = False
    """True when it spaces the arguments of tool calls anew."""
    shows_lines: tuple[str, ...] = ()
    """Seams where it shows line breaks at the very edge, as templates write them, and so does not strip them."""
    end_unclear: bool = False
    """True when its rows leave open if it bills the end token."""
    unclosed: bool = False
    """True when too many of its answers with calls are one token short for slips of the model to explain them."""
    unreliable: bool = False
    """True when its bills count something other than what the model emitted."""
    rewrites: bool = False
    """True when it writes tool calls' arguments anew in a way that their spacing does not explain."""
    sorts_keys: bool = False
    """True when it writes the keys of tool calls' arguments in alphabetical order."""
    limit: int | None = None
    """The bill at which its answers pile up although it says that they ended by themselves; None when they do not."""
    splits: bool = False
    """True when more of its answers show reasoning and content apart than show the reasoning alone."""
    prompts: PromptHabits = NO_HABITS
    """What it does to every prompt."""
    ids_gap: int | None = None
    """Billed minus returned tokens on most of its answers whose ids lack the end token; None when too few show it."""


UNKNOWN = Habits()
"""Habits assumed of a provider without rows."""


@dataclass(slots=True)
class HabitCounts:
    """Counts over the rows of a provider. They are bounded, and do not depend on the order of the rows."""

    rows: int = 0
    stop_deltas: Counter[int] = field(default_factory=Counter)
    """Billed minus rebuilt tokens on plain answers without calls that ended by themselves; others than -1 and 0 are
    left out."""
    length_deltas: Counter[int] = field(default_factory=Counter)
    """The same on answers that were cut."""
    plain_deltas: Counter[int] = field(default_factory=Counter)
    """All such differences on answers whose text spells out no marker, except those that another reading explains."""
    plain_rows: int = 0
    """Number of such answers."""
    call_deltas: Counter[int] = field(default_factory=Counter)
    """The same on answers with calls, with the arguments in the spacing that comes closer to the bill. It is -1 where
    only a reasoning that was never closed would explain the bill: either the model slipped, which is rare, or the end
    token is not billed."""
    call_rows: int = 0
    """Number of such answers."""
    sorted_keys: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Keys of objects in the arguments of calls, two or more in alphabetical order."""
    unsorted_keys: int = 0
    """Number of objects whose keys are in another order."""
    texts: Counter[str] = field(default_factory=Counter)
    """Rows whose text has reasoning, and rows whose text has content."""
    shown: Counter[Space] = field(default_factory=Counter)
    """Rows whose text has white space at a seam."""
    verified: int = 0
    """Rows whose ids are known."""
    emitted: Counter[Space] = field(default_factory=Counter)
    """Rows whose known ids have white space at a seam."""
    templated: Counter[Space] = field(default_factory=Counter)
    """Rows of a chat format whose template writes this white space at a seam."""
    trimmed: Counter[str] = field(default_factory=Counter)
    """Rows of a server of a kind that strips a seam by default."""
    lost: Counter[Space] = field(default_factory=Counter)
    """Rows whose known ids have white space at a seam where the text has none."""
    spaced: int = 0
    """Rows whose ids or bill say that the arguments of their calls are as the model spaced them."""
    respaced: int = 0
    """Rows whose ids or bill say that the model spaced them otherwise."""
    apart: int = 0
    """Number of answers without calls that show reasoning and content in fields of their own."""
    reasoning_alone: int = 0
    """Number of answers that ended by themselves and show nothing but reasoning."""
    cut_rows: int = 0
    """Number of answers that the server itself calls cut."""
    stop_bills: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    """(billed tokens, difference as in `stop_deltas`, digest of the text) of the answers in `stop_deltas`."""
    ids_gaps: Counter[int] = field(default_factory=Counter)
    """Billed minus returned tokens on answers that ended by themselves and whose returned ids lack the end token."""
    prompt_deltas: Counter[int] = field(default_factory=Counter)
    """Billed minus rendered tokens of the prompt, unless another reading of it explains the bill."""
    prompt_support: Counter[str] = field(default_factory=Counter)
    """Rows whose bill is that of another reading of the prompt, by reading."""
    prompt_refutation: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Rows whose bill is that of the template's prompt, but for a small difference, and not that of another reading; by
    reading and difference."""

    def add(self, other: "HabitCounts") -> None:
        """Add the counts of other rows."""
        for item in fields(self):
            own = getattr(self, item.name)
            if isinstance(own, Counter):
                own.update(getattr(other, item.name))
            else:
                setattr(self, item.name, own + getattr(other, item.name))


def add_counts(counts: dict[str | None, HabitCounts], provider: str | None, shown: HabitCounts, limit: int) -> None:
    """Add what a row shows to the counts of its provider, unless those have `limit` rows already."""
    own = counts.setdefault(provider, HabitCounts())
    if own.rows < limit:
        own.add(shown)


def spaces(reasoning: str, content: str) -> Iterator[Space]:
    """Yield the white space at the seams of an answer's texts."""
    for name, text in (("reasoning", reasoning), ("content", content)):
        if text[:1].isspace():
            yield f"{name}_start", text[: len(text) - len(text.lstrip())][:MAX_LENGTH]
        if text[-1:].isspace():
            yield f"{name}_end", text[len(text.rstrip()) :][-MAX_LENGTH:]


def learn(counts: dict[str | None, HabitCounts]) -> dict[str | None, Habits]:
    """Return the habits of each provider, concluded from the rows of all providers."""
    habits = {}
    for provider, own in counts.items():
        others = HabitCounts()
        for other_provider, other in counts.items():
            if other_provider != provider:
                others.add(other)
        habits[provider] = _habits(own, others)
    return habits


def _ends(own: HabitCounts) -> tuple[int, int]:
    """Count the answers that are one token short, and the exact ones.

    Answers without calls are taken where there are enough of them, since no server writes them anew.
    """
    piled = piled_bill(own)
    cut = {(delta, text) for billed, delta, text in own.stop_bills if billed == piled}
    short, exact = (own.stop_deltas[delta] - sum(1 for each, _ in cut if each == delta) for delta in (-1, 0))
    if short + exact >= MIN_ROWS:
        return short, exact
    return short + (own.call_deltas[-1] if own.call_deltas[-1] >= MIN_UNEXPLAINED else 0), exact + own.call_deltas[0]


def piled_bill(own: HabitCounts) -> int | None:
    """Return the longest bill when several different answers have it that leave no room for an end token, else None.

    A gateway that always says "stop" shows answers so that were cut at a limit. A provider that says of any answer that
    it was cut does not hide it of others.
    """
    if own.cut_rows:
        return None
    longest = max((billed for billed, _, _ in own.stop_bills), default=None)
    short = sum(1 for billed, delta, _ in own.stop_bills if billed == longest and delta == -1)
    return longest if short >= MIN_PILED and longest is not None and longest >= MIN_LIMIT else None


def usual_gap(own: HabitCounts) -> int | None:
    """Return billed minus returned tokens on most answers whose ids lack the end token; None when too few show it."""
    if own.ids_gaps.total() < MIN_GAPS:
        return None
    return min(own.ids_gaps, key=lambda gap: (-own.ids_gaps[gap], gap))


def bills_end(own: HabitCounts) -> bool:
    """Return whether the end token is billed: not when most stops are one token short, while most cut answers are not.

    A tie means that it is not billed. Without that bill an exact count is common: a text cut into one token more than
    usual makes one. With it a bill is hardly ever one short.
    """
    short, exact = _ends(own)
    return not (short and short >= exact and own.length_deltas[-1] <= own.length_deltas[0])


def end_unclear(own: HabitCounts) -> bool:
    """Return whether the answers that are one token short are too many to bill the end token, and too few not to.

    This happens where the end is not billed and white space is stripped: then an exact count belongs to an answer that
    lost one token of white space. A provider that shows white space everywhere strips none: its short answers were cut
    in an unusual way.
    """
    short, exact = _ends(own)
    return MIN_SHORT <= short < exact and short >= SHORT_RATE * (short + exact)


def _frequent(deltas: Counter[int], rows: float, low: float, high: float) -> bool:
    """Return whether enough bills, and at least `rows` of them, are above the text by `low` to `high` tokens."""
    return sum(count for delta, count in deltas.items() if low <= delta <= high) >= max(rows, MIN_UNEXPLAINED)


def sorts_keys(own: HabitCounts) -> bool:
    """Return whether the keys of every object came in alphabetical order, and chance does not explain it.

    Each kind of object counts once, since a tool's schema may be sorted.
    """
    return (
        not own.unsorted_keys and sum(math.log2(math.factorial(len(keys))) for keys in own.sorted_keys) >= SORTED_BITS
    )


def _habits(own: HabitCounts, others: HabitCounts) -> Habits:
    shown = {seam for seam, _ in own.shown}
    silent = [seam for seam in SEAMS if seam not in shown and STRIPPED_WITH.get(seam) not in shown]
    verified = own.verified >= MIN_VERIFIED
    may_strip = {seam: _at(seam, own.lost) if verified else WHITE_SPACE for seam in silent}
    ends_billed = bills_end(own)
    exact = 0 if ends_billed else -1
    loses = not own.verified and _frequent(own.plain_deltas, LOST_RATE * own.plain_rows, exact + 1, exact + MAX_LOST)
    rewrites = [
        _frequent(own.call_deltas, IMPOSSIBLE_RATE * own.call_rows, low, high)
        for low, high in ((-math.inf, exact - 2), (exact + MAX_LOST + 1, math.inf))
    ]
    strips = {
        seam: _at(seam, own.emitted, others.shown, others.emitted, own.templated) or WHITE_SPACE
        for seam in silent
        if loses or _strips(own, others, seam) or _by_default(own, others, exact, seam)
    }
    return Habits(
        ends_billed,
        {seam: texts for seam, texts in may_strip.items() if texts},
        strips,
        verified,
        respaces=own.respaced >= MIN_RESPACED and own.respaced > own.spaced,
        shows_lines=tuple(
            seam
            for seam in SEAMS
            if any(name == seam and text[0 if seam.endswith("start") else -1] == "\n" for name, text in own.shown)
        ),
        end_unclear=bool(silent) and end_unclear(own),
        unclosed=own.call_deltas[-1] >= MIN_UNEXPLAINED,
        unreliable=_frequent(own.plain_deltas, IMPOSSIBLE_RATE * own.plain_rows, -math.inf, exact - 2),
        rewrites=any(rewrites),
        sorts_keys=sorts_keys(own),
        limit=piled_bill(own),
        splits=own.apart > own.reasoning_alone,
        ids_gap=usual_gap(own),
        prompts=learn_prompts(own.prompt_deltas, own.prompt_support, own.prompt_refutation),
    )


def _at(seam: str, *counts: Counter[Space]) -> tuple[str, ...]:
    """Return the white space seen at a seam, the most frequent first."""
    totals: Counter[str] = Counter()
    for counter in counts:
        totals.update({text: count for (name, text), count in counter.items() if name == seam})
    return tuple(sorted(totals, key=lambda text: (-totals[text], text))[:MAX_SPACES])


def _strips(own: HabitCounts, others: HabitCounts, seam: str) -> bool:
    """Return whether a provider that never showed white space at a seam should have shown some."""
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


def _by_default(own: HabitCounts, others: HabitCounts, exact: int, seam: str) -> bool:
    """Return whether a provider is taken for stripping a seam until its rows show otherwise.

    That is so where its kind of server does it by default, where the template writes white space there, and where no
    other rows tell what the model writes and some bills are above the text.
    """
    if own.verified >= MIN_VERIFIED:
        return False
    if own.trimmed[seam] or _total(seam, own.templated):
        return True
    known = others.texts[seam.partition("_")[0]] >= MIN_ROWS or others.verified >= MIN_VERIFIED
    above = sum(count for delta, count in own.plain_deltas.items() if exact < delta <= exact + MAX_LOST)
    return not known and above >= max(MIN_ABOVE, ALONE_RATE * own.plain_rows)


def _total(seam: str, counts: Counter[Space]) -> int:
    return sum(count for (name, _), count in counts.items() if name == seam)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
