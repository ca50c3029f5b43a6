"""Hashes of n-grams of ids, to find repeats, near-duplicates and overlap with held-out data."""

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
    """Mix the bits of 64-bit values (half of MurmurHash3's finalizer)."""
    values = (values ^ (values >> np.uint64(33))) * _MIX
    return values ^ (values >> np.uint64(33))


def spread(ids: NDArray[np.int32]) -> Hashes:
    """Return a 64-bit value of each id, from which the hashes of n-grams are made."""
    return mix(ids.astype(np.uint64) + np.uint64(1))


def gram_hashes(ids: NDArray[np.int32], n: int) -> Hashes:
    """Return the hash of each n consecutive ids, in order; [max(0, len(ids) - n + 1)].

    Pieces of the ids are hashed in turn, so that intermediate values stay in the processor's cache.
    """
    hashes = np.empty(max(len(ids) - n + 1, 0), dtype=np.uint64)
    for start in range(0, len(hashes), _PIECE):
        hashes[start : start + _PIECE] = _piece(spread(ids[start : start + _PIECE + n - 1]), n)
    return hashes


def _piece(block: Hashes, n: int) -> Hashes:
    """Return the hash of each n consecutive values.

    The polynomial of 2k ids follows from those of k ids, so an n-gram costs about 2 log2(n) multiplications, not n.
    """
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
    """Return the 64-bit hash of a whole sequence of ids."""
    return hash_bytes(np.ascontiguousarray(ids, dtype="<i4").tobytes())


def hash_bytes(data: bytes) -> int:
    """Return the 64-bit hash of a whole sequence, given as little-endian int32."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
