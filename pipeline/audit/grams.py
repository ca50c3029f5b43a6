"""Hashes of n-grams of ids, for whole batches at once: repeats, near-duplicates and overlap with held-out data."""

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd multiplier of the polynomial, 2**64 over the golden ratio."""
_MIX = np.uint64(0xFF51AFD7ED558CCD)
"""Multiplier of MurmurHash3's finalizer."""


def mix(values: Hashes) -> Hashes:
    """Scramble 64-bit values so that every bit of the result depends on every bit given (MurmurHash3's finalizer, halved)."""
    values = (values ^ (values >> np.uint64(33))) * _MIX
    return values ^ (values >> np.uint64(33))


def gram_hashes(ids: NDArray[np.int32], n: int) -> Hashes:
    """Hash of each n consecutive ids, in order; length max(0, len(ids) - n + 1)."""
    count = len(ids) - n + 1
    if count <= 0:
        return np.zeros(0, dtype=np.uint64)
    spread = mix(ids.astype(np.uint64) + np.uint64(1))
    total = np.zeros(count, dtype=np.uint64)
    for offset in range(n):
        total = total * _FACTOR + spread[offset : offset + count]
    return mix(total)


def sequence_hash(ids: NDArray[np.int32]) -> int:
    """Hash of a whole sequence, its length included."""
    powers = _FACTOR ** np.arange(len(ids), dtype=np.uint64)
    total = np.sum(mix(ids.astype(np.uint64) + np.uint64(1)) * powers, dtype=np.uint64)
    return int(mix(np.array([total ^ np.uint64(len(ids))], dtype=np.uint64))[0])
