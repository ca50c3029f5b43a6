"""A sequence cut into runs where its content says so: an item that comes, goes or changes moves the cuts near it and no others."""

from collections.abc import Iterator, Sequence


def runs(sizes: Sequence[int], marks: Sequence[str], most: int) -> Iterator[range]:
    """Numbers of the items of each run, whose sizes add up to at most ``most``; a larger item is a run alone.

    A run ends before the item with the smallest mark among those before which its size would be between half and whole of ``most``.
    So the next cut after an edit is mostly where it was before, and from there on all are. What is left at the end is the last run.
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
    """Best place to end the run that begins at ``start`` and has room up to ``end``, which is no end of the sequence."""
    total = sum(sizes[start:end])
    best = end
    for place in range(end - 1, start, -1):
        total -= sizes[place]
        if 2 * total < most:
            break
        if marks[place] < marks[best]:
            best = place
    return best
