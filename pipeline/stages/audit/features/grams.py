"""Hashes of n-grams of ids, for whole batches at once: repeats, near-duplicates and overlap with held-out data."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd multiplier of the polynomial, 2**64 over the golden ratio."""
_MIX = np.uint64(0xFF51AFD7ED558CCD)
"""Multiplier of MurmurHash3's finalizer."""
_PIECE = 1 << 14


def mix(values: Hashes) -> Hashes:
    """Scramble 64-bit values so that every bit of the result depends on every bit given (MurmurHash3's finalizer, halved)."""
    values = (values ^ (values >> np.uint64(33))) * _MIX
    return values ^ (values >> np.uint64(33))


def spread(ids: NDArray[np.int32]) -> Hashes:
    """Scrambled 64-bit value of each id: what grams are made of."""
    return mix(ids.astype(np.uint64) + np.uint64(1))


def gram_hashes(ids: NDArray[np.int32], n: int) -> Hashes:
    """Hash of each n consecutive ids, in order; length max(0, len(ids) - n + 1).

    Worked out a piece at a time, so that the values in between stay in the processor's cache.
    """
    hashes = np.empty(max(len(ids) - n + 1, 0), dtype=np.uint64)
    for start in range(0, len(hashes), _PIECE):
        hashes[start : start + _PIECE] = _piece(spread(ids[start : start + _PIECE + n - 1]), n)
    return hashes


def _piece(block: Hashes, n: int) -> Hashes:
    """Hash of each n consecutive values. The polynomial of 2k ids is made from those of k ids: a gram costs about 2 log2(n) multiplications, not n."""
    count, width, done = len(block) - n + 1, 1, 0
    total = np.zeros(count, dtype=np.uint64)
    while True:
        if n & width:
            total = total * _power(width) + block[done : done + count]
            done += width
        if done == n:
            return mix(total)
        block = block[:-width] * _power(width) + block[width:]
        width *= 2


def _power(exponent: int) -> np.uint64:
    return np.uint64(pow(int(_FACTOR), exponent, 1 << 64))


def sequence_hash(ids: NDArray[np.int32]) -> int:
    """Hash of a whole sequence, 64 bits."""
    return hash_bytes(np.ascontiguousarray(ids, dtype="<i4").tobytes())


def hash_bytes(data: bytes) -> int:
    """Hash of a whole sequence, given as little-endian int32; 64 bits."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
