"""Shared memory for large messages between a process and the processes that it forked.

Through a pipe the kernel copies each byte twice, 64 KiB at a time, and wakes the other side for each piece.
"""

import mmap
from collections.abc import Sequence
from typing import NamedTuple


class Parcel(NamedTuple):
    """Position of a message's parts, small enough for a pipe."""

    sizes: list[int]
    """Bytes of each part; -1 for a part of None."""
    slot: int | None
    parts: Sequence[bytes | None] = ()
    """The parts themselves, when no slot had room for them."""


class Slots:
    """Pieces of shared memory, each for one message to a process and its answer.

    They must be made before the fork, and one process alone hands them out.
    """

    def __init__(self, count: int, size: int) -> None:
        self._memory = [mmap.mmap(-1, size) for _ in range(count)]
        self._size = size
        self._free = list(range(count))

    def take(self) -> int | None:
        """Return a free slot; None when all are in use, which only costs time."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int | None) -> None:
        """Mark a slot as free, once its answer was read."""
        if slot is not None:
            self._free.append(slot)

    def put(self, slot: int | None, parts: Sequence[bytes | None]) -> Parcel:
        """Write parts over the content of a slot; parts that are too large go into the parcel."""
        sizes = [-1 if part is None else len(part) for part in parts]
        if slot is None or sum(sizes) > self._size:
            return Parcel(sizes, None, parts)
        memory, start = self._memory[slot], 0
        for part in filter(None, parts):
            memory[start : (start := start + len(part))] = part
        return Parcel(sizes, slot)

    def get(self, parcel: Parcel) -> list[bytes | None]:
        """Return the parts of a parcel, copied out of its slot."""
        if parcel.slot is None:
            return list(parcel.parts)
        memory, start = self._memory[parcel.slot], 0
        return [None if size < 0 else memory[start : (start := start + size)] for size in parcel.sizes]
