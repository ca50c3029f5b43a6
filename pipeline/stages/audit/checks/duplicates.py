"""Rows that repeat another row: checks over all rows of a dataset, from a few bytes kept of each."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import rensa
from numpy.typing import NDArray

from pipeline.stages.audit.checks.check import Complaint
from pipeline.stages.audit.config import CheckSection, DuplicateSection, NearDuplicateSection
from pipeline.stages.audit.features.grams import hash_bytes, mix
from pipeline.stages.audit.inputs.batch import Batch, Ragged

NameOf = Callable[[int], str]
_SEED = 0
_NONE = 0
"""Fact of a row that has nothing to compare."""
_SOME = 1 << 14
"""Pairs handled at a time."""


def _hashes(ids: Ragged, min_tokens: int) -> NDArray[np.uint64]:
    """Hash of each row's ids, 0 for a row that is too short; [rows]."""
    data, least = np.ascontiguousarray(ids.values, dtype="<i4").tobytes(), 4 * max(min_tokens, 1)
    bounds = (4 * ids.starts).tolist()
    return np.array(
        [hash_bytes(data[start:end]) if end - start >= least else _NONE for start, end in pairwise(bounds)],
        dtype=np.uint64,
    )


def repeats(facts: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each row whose hash an earlier row has, in order, and the first row with that hash; facts [rows]."""
    rows, firsts, _befores = _same(facts)
    sequence = np.argsort(rows)
    return rows[sequence], firsts[sequence]


def _same(facts: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Each row whose hash an earlier row has, with the first and the last row before it that have it; in the order of hashes."""
    order = np.argsort(facts, kind="stable")
    ordered = facts[order]
    begins = np.ones(len(facts), dtype=np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    firsts = order[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    again = ~begins & (ordered != _NONE)
    return order[again], firsts[again], np.roll(order, 1)[again]


def prompt_hashes(batch: Batch, _settings: CheckSection) -> NDArray[np.uint64]:
    """What `duplicate_prompts` keeps of each row."""
    return _hashes(batch.prompt, 1)


def completion_hashes(batch: Batch, settings: DuplicateSection) -> NDArray[np.uint64]:
    """What `duplicate_completions` keeps of each row."""
    return _hashes(batch.completion, settings.min_tokens)


def duplicate_prompts(facts: NDArray[Any], name: NameOf, _settings: CheckSection) -> Iterator[Complaint]:
    for row, first in _each(*repeats(facts)):
        yield Complaint(row, None, f"same prompt as {name(first)}")


def duplicate_completions(facts: NDArray[Any], name: NameOf, _settings: DuplicateSection) -> Iterator[Complaint]:
    for row, first in _each(*repeats(facts)):
        yield Complaint(row, None, f"same answer as {name(first)}")


def _each(*columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of columns as Python values, some at a time: a million at once take a hundred times the memory."""
    for start in range(0, len(columns[0]), _SOME):
        yield from zip(*(column[start : start + _SOME].tolist() for column in columns), strict=True)


def signatures(batch: Batch, settings: NearDuplicateSection) -> NDArray[np.uint16]:
    """MinHash signature of the set of each answer's n-grams, the low half of each minimum; zeros for one that is too short; [rows, permutations]."""
    found = np.zeros((batch.size, settings.permutations), dtype=np.uint16)
    rows = np.flatnonzero(batch.completion.lengths >= max(settings.min_tokens, settings.n))
    if len(rows):
        grams = [batch.grams(row, settings.n) for row in rows.tolist()]
        offsets = np.cumsum([0, *map(len, grams)], dtype=np.uint64)
        matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
            np.concatenate(grams), offsets, settings.permutations, _SEED
        )
        found[rows] = np.array(matrix.to_rows(), dtype=np.uint32)
    return found


def near_pairs(
    facts: NDArray[np.uint16], settings: NearDuplicateSection
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Each row that is much like an earlier one, in order, the first such row that a band brings to light, and how alike they are.

    A row is compared with the first and with the last row before it that have the same values in a band.
    """
    best = np.full(len(facts), len(facts), dtype=np.int64)
    alike = np.zeros(len(facts))
    some = facts.any(axis=1)
    width = facts.shape[1] // settings.bands
    for band in range(settings.bands):
        key = np.zeros(len(facts), dtype=np.uint64)
        for column in range(band * width, (band + 1) * width):
            key = mix(key * np.uint64(31) + facts[:, column] + np.uint64(1))
        key[~some] = _NONE
        rows, firsts, befores = _same(key)
        for others in (befores, firsts):
            earlier = np.flatnonzero(others < best[rows])
            for start in range(0, len(earlier), _SOME):
                one, other = (pairs[earlier[start : start + _SOME]] for pairs in (rows, others))
                found = (facts[one] == facts[other]).mean(axis=1)
                good = found >= settings.min_similarity
                best[one[good]], alike[one[good]] = other[good], found[good]
    rows = np.flatnonzero(best < len(facts))
    return rows, best[rows], alike[rows]


def near_duplicates(facts: NDArray[Any], name: NameOf, settings: NearDuplicateSection) -> Iterator[Complaint]:
    for row, first, similarity in _each(*near_pairs(facts, settings)):
        yield Complaint(row, None, f"about {similarity:.0%} the same {settings.n}-grams as {name(first)}")
