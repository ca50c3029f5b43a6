"""Checks for rows that repeat another row, by hashes and signatures of all rows."""

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
"""Hash of a row with nothing to compare."""
_CHUNK = 1 << 14
"""Pairs of rows that are handled at a time."""


def _hashes(ids: Ragged, min_tokens: int) -> NDArray[np.uint64]:
    """Return the hash of each row's ids, 0 for a row that is too short; [rows]."""
    data, least = np.ascontiguousarray(ids.values, dtype="<i4").tobytes(), 4 * max(min_tokens, 1)
    bounds = (4 * ids.starts).tolist()
    return np.array(
        [hash_bytes(data[start:end]) if end - start >= least else _NONE for start, end in pairwise(bounds)],
        dtype=np.uint64,
    )


def repeats(facts: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, in order, the rows whose hash an earlier row has, and the first row with that hash; facts [rows]."""
    rows, firsts, _befores = _same(facts)
    sequence = np.argsort(rows)
    return rows[sequence], firsts[sequence]


def _same(facts: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows whose hash an earlier row has, with the first and the last such earlier row; by hash."""
    order = np.argsort(facts, kind="stable")
    ordered = facts[order]
    begins = np.ones(len(facts), dtype=np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    firsts = order[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    again = ~begins & (ordered != _NONE)
    return order[again], firsts[again], np.roll(order, 1)[again]


def prompt_hashes(batch: Batch, _settings: CheckSection) -> NDArray[np.uint64]:
    """Return the hash of each prompt, for `duplicate_prompts`; [rows]."""
    return _hashes(batch.prompt, 1)


def completion_hashes(batch: Batch, settings: DuplicateSection) -> NDArray[np.uint64]:
    """Return the hash of each completion, for `duplicate_completions`; [rows]."""
    return _hashes(batch.completion, settings.min_tokens)


def duplicate_prompts(facts: NDArray[Any], name: NameOf, _settings: CheckSection) -> Iterator[Complaint]:
    for row, first in _each(*repeats(facts)):
        yield Complaint(row, None, f"same prompt as {name(first)}")


def duplicate_completions(facts: NDArray[Any], name: NameOf, _settings: DuplicateSection) -> Iterator[Complaint]:
    for row, first in _each(*repeats(facts)):
        yield Complaint(row, None, f"same answer as {name(first)}")


def _each(*columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of columns as Python values, in chunks: a million at once take a hundred times the memory."""
    for start in range(0, len(columns[0]), _CHUNK):
        yield from zip(*(column[start : start + _CHUNK].tolist() for column in columns), strict=True)


def signatures(batch: Batch, settings: NearDuplicateSection) -> NDArray[np.uint16]:
    """Return the MinHash signature of each answer's set of n-grams, [rows, permutations] uint16; zeros for a short one.

    Of each 32-bit minimum the low half is kept.
    """
    result = np.zeros((batch.size, settings.permutations), dtype=np.uint16)
    rows = np.flatnonzero(batch.completion.lengths >= max(settings.min_tokens, settings.n))
    if len(rows):
        grams = [batch.grams(row, settings.n) for row in rows.tolist()]
        offsets = np.cumsum([0, *map(len, grams)], dtype=np.uint64)
        matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
            np.concatenate(grams), offsets, settings.permutations, _SEED
        )
        result[rows] = np.array(matrix.to_rows(), dtype=np.uint32)
    return result


def near_pairs(
    facts: NDArray[np.uint16], settings: NearDuplicateSection
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return, in order, the rows that are nearly equal to an earlier one, with that row and their similarity.

    ``facts`` [rows, permutations] are signatures. Candidates come from banding (Leskovec, Rajaraman, Ullman, "Mining of
    Massive Datasets", section 3.4): in each band, a row is compared with the first and the last earlier row of equal
    values. Of several similar rows the earliest counts.
    """
    partner = np.full(len(facts), len(facts), dtype=np.int64)
    similarity = np.zeros(len(facts))
    comparable = facts.any(axis=1)
    width = facts.shape[1] // settings.bands
    for band in range(settings.bands):
        key = np.zeros(len(facts), dtype=np.uint64)
        for column in range(band * width, (band + 1) * width):
            key = mix(key * np.uint64(31) + facts[:, column] + np.uint64(1))
        key[~comparable] = _NONE
        rows, firsts, befores = _same(key)
        for others in (befores, firsts):
            earlier = np.flatnonzero(others < partner[rows])
            for start in range(0, len(earlier), _CHUNK):
                one, other = (pairs[earlier[start : start + _CHUNK]] for pairs in (rows, others))
                shares = (facts[one] == facts[other]).mean(axis=1)
                near = shares >= settings.min_similarity
                partner[one[near]], similarity[one[near]] = other[near], shares[near]
    rows = np.flatnonzero(partner < len(facts))
    return rows, partner[rows], similarity[rows]


def near_duplicates(facts: NDArray[Any], name: NameOf, settings: NearDuplicateSection) -> Iterator[Complaint]:
    for row, first, similarity in _each(*near_pairs(facts, settings)):
        yield Complaint(row, None, f"about {similarity:.0%} the same {settings.n}-grams as {name(first)}")
