"""Large messages between a process and those forked from it, by memory that all of them share.

Through a pipe the kernel copies each byte twice, 64 KiB at a time, and wakes the other side for each.
"""

import mmap
from collections.abc import Sequence
from typing import NamedTuple


class Parcel(NamedTuple):
    """Where the parts of a message are, as it is told through a pipe."""

    sizes: list[int]
    """Bytes of each part; -1 for a part of None."""
    slot: int | None
    parts: Sequence[bytes | None] = ()
    """The parts themselves, where no slot had room for them."""


class Slots:
    """Pieces of shared memory, each for one message to a process and its answer. To be made before the fork; one process alone hands them out."""

    def __init__(self, count: int, size: int) -> None:
        self._memory = [mmap.mmap(-1, size) for _ in range(count)]
        self._size = size
        self._free = list(range(count))

    def take(self) -> int | None:
        """Give a slot that nobody uses; None when all are in use, which only costs time."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int | None) -> None:
        """Say that the answer in a slot was read."""
        if slot is not None:
            self._free.append(slot)

    def put(self, slot: int | None, parts: Sequence[bytes | None]) -> Parcel:
        """Lay parts into a slot, over what it held; or leave them in the parcel, when they are too large."""
        sizes = [-1 if part is None else len(part) for part in parts]
        if slot is None or sum(sizes) > self._size:
            return Parcel(sizes, None, parts)
        memory, start = self._memory[slot], 0
        for part in filter(None, parts):
            memory[start : (start := start + len(part))] = part
        return Parcel(sizes, slot)

    def get(self, parcel: Parcel) -> list[bytes | None]:
        """Give the parts that were put, copied out of the slot."""
        if parcel.slot is None:
            return list(parcel.parts)
        memory, start = self._memory[parcel.slot], 0
        return [None if size < 0 else memory[start : (start := start + size)] for size in parcel.sizes]
