"""Runs of a sequence, cut by its content: an edit moves only the cuts near it."""

from collections.abc import Iterator, Sequence


def runs(sizes: Sequence[int], marks: Sequence[str], most: int) -> Iterator[range]:
    """Yield the numbers of each run's items. Their sizes add up to at most ``most``; a larger item is a run alone.

    A run ends before the item with the smallest mark, among the items before which the run's size is between half and
    all of ``most``. So the next cut after an edit is mostly where it was before, and all later cuts are. The rest of
    the sequence is the last run.
    """
    start = 0
    while start < len(sizes):
        end, total = start + 1, sizes[start]
        while end < len(sizes) and total + sizes[end] <= most:
            total += sizes[end]
            end += 1
        if end < len(sizes):
            end = _cut(sizes, marks, start, end, most)
        yield range(start, end)
        start = end


def _cut(sizes: Sequence[int], marks: Sequence[str], start: int, end: int, most: int) -> int:
    """Return where to end the run that begins at ``start`` and has room up to ``end``, before the sequence ends."""
    total = sum(sizes[start:end])
    best = end
    for place in range(end - 1, start, -1):
        total -= sizes[place]
        if 2 * total < most:
            break
        if marks[place] < marks[best]:
            best = place
    return best
