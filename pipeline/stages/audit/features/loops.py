"""Phrases that an answer says again and again, with any number of tokens between two repetitions."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.audit.features.grams import Hashes

SHORTEST = 32
"""Shortest stretch of repeated n-grams that is looked at. A loop of 65 tokens with three repetitions has one of 39."""
_STEP = 8
"""Every eighth place of a stretch is looked at first, which clears most answers."""
_PERIODS = 4
"""Distances that are tried for each stretch, the most frequent first."""
_WORD = re.compile(r"[^\W\d_]{2,}")
_MARKUP = re.compile(r"[|{}\[\];<>\t]|\w\(|,[^\W\d_]")
"""Marks of tables, code and comma-separated values."""
_WORDY_SHARE = 0.5
"""Smallest share of letters among the characters of prose that are not white space."""


class Loop(NamedTuple):
    """A stretch of ids in which each id equals the one a period before it."""

    start: int
    length: int
    """Tokens of all repetitions together."""
    period: int

    @property
    def times(self) -> int:
        """Number of repetitions, rounded: the first token of the first one is often another, for want of a space."""
        return (2 * self.length + self.period) // (2 * self.period)


def find_loops(ids: NDArray[np.int32], hashes: Hashes, n: int) -> Iterator[Loop]:
    """Yield the longest loop of each stretch of ids that repeats earlier ones; ``hashes`` are those of its n-grams.

    Each n-gram of a loop, from the second repetition on, has occurred before. A table of first places finds such
    n-grams in one pass, and only long stretches of them are compared with themselves at a few distances. So the time
    is linear in the number of ids, except for sorting the stretches.
    """
    for start, stop in _seen_stretches(hashes):
        begin = max(start - (stop - start), 0)
        yield from _longest(ids[begin : stop + n - 1], hashes[begin:stop], begin)


def _seen_stretches(hashes: Hashes) -> list[tuple[int, int]]:
    """Return start and end of long stretches of hashes that an earlier place may have.

    Hashes share the slots of a table, so a stretch may be too long, and is never too short.
    """
    bits = max(len(hashes).bit_length() + 1, 8)
    slots = (hashes >> np.uint64(64 - bits)).astype(np.int64)
    places = np.arange(len(hashes), dtype=np.int32)
    first = np.empty(1 << bits, dtype=np.int32)
    first[slots[::-1]] = places[::-1]
    sampled = first[slots[::_STEP]] != places[::_STEP]
    pairs = sampled[1:] & sampled[:-1]
    if not (pairs[2:] & pairs[:-2]).any():  # four in a row: a stretch of SHORTEST has as many
        return []
    new = np.flatnonzero(first[slots] == places)
    lengths = np.diff(new, append=len(hashes)) - 1
    long = np.flatnonzero(lengths >= SHORTEST)
    return [(int(new[at]) + 1, int(new[at]) + 1 + int(lengths[at])) for at in long]


def _longest(ids: NDArray[np.int32], hashes: Hashes, begin: int) -> Iterator[Loop]:
    """Yield the longest loop of a stretch that begins at ``begin``, if two repetitions follow each other."""
    order = np.argsort(hashes, kind="stable")
    same = hashes[order[1:]] == hashes[order[:-1]]
    distances, counts = np.unique((order[1:] - order[:-1])[same], return_counts=True)
    loops = []
    for period in distances[np.argsort(-counts, kind="stable")][:_PERIODS].tolist():
        different = np.flatnonzero(ids[period:] != ids[:-period])
        edges = np.concatenate([[-1], different, [len(ids) - period]])
        runs = np.diff(edges) - 1
        at = int(np.argmax(runs))
        if runs[at] >= period:
            loops.append(Loop(begin + int(edges[at]) + 1, int(runs[at]) + period, period))
    if loops:
        yield max(loops, key=lambda loop: (loop.length, -loop.period))


def is_prose(text: str) -> bool:
    """Return whether a text is at least one word and neither a row of a table nor code.

    Cells, rows of zeros and drawings repeat honestly; sentences do not.
    """
    shown = "".join(text.split())
    letters = sum(map(str.isalpha, shown))
    return letters >= _WORDY_SHARE * len(shown) and bool(_WORD.search(text)) and not _MARKUP.search(text)
