"""Rows that repeat another row: checks over all rows of a dataset, from a few bytes kept of each."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import rensa
from numpy.typing import NDArray

from pipeline.audit.batch import Batch, Ragged
from pipeline.audit.checks.registry import Complaint, across
from pipeline.audit.config import CheckSection, DuplicateSection, NearDuplicateSection
from pipeline.audit.grams import mix, sequence_hash

Names = Callable[[int], str]
_SEED = 0
_NONE = 0
"""Fact of a row that has nothing to compare."""


def _hashes(ids: Ragged, min_tokens: int) -> NDArray[np.uint64]:
    """Hash of each row's ids, 0 for a row that is too short; [rows, 1]."""
    lengths = ids.lengths.tolist()
    values = [sequence_hash(ids[row]) if length >= max(min_tokens, 1) else _NONE for row, length in enumerate(lengths)]
    return np.array(values, dtype=np.uint64).reshape(-1, 1)


def repeats(facts: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Row and the first row with the same hash, for each row that is not the first; facts [rows]."""
    order = np.argsort(facts, kind="stable")
    ordered = facts[order]
    begins = np.ones(len(facts), dtype=np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    groups = np.cumsum(begins) - 1
    firsts = order[np.flatnonzero(begins)][groups]
    again = np.sort(order[~begins & (ordered != _NONE)])
    first_of = np.empty(len(facts), dtype=np.int64)
    first_of[order] = firsts
    return zip(again.tolist(), first_of[again].tolist(), strict=True)


def prompt_hashes(batch: Batch, _settings: CheckSection) -> NDArray[np.uint64]:
    """What `duplicate_prompts` keeps of each row."""
    return _hashes(batch.prompt, 1)


def completion_hashes(batch: Batch, settings: DuplicateSection) -> NDArray[np.uint64]:
    """What `duplicate_completions` keeps of each row."""
    return _hashes(batch.completion, settings.min_tokens)


@across("duplicate_prompts", "No other row has the same prompt.", prompt_hashes)
def duplicate_prompts(facts: NDArray[Any], name: Names, _settings: CheckSection) -> Iterator[Complaint]:
    for row, first in repeats(facts[:, 0]):
        yield Complaint(row, None, f"same prompt as {name(first)}")


@across("duplicate_completions", "No other row has the same answer.", completion_hashes)
def duplicate_completions(facts: NDArray[Any], name: Names, _settings: DuplicateSection) -> Iterator[Complaint]:
    for row, first in repeats(facts[:, 0]):
        yield Complaint(row, None, f"same answer as {name(first)}")


def signatures(batch: Batch, settings: NearDuplicateSection) -> NDArray[np.uint32]:
    """MinHash signature of the set of each answer's n-grams; zeros for one that is too short; [rows, permutations], uint32."""
    lengths = batch.completion.lengths
    grams = [batch.grams(row, settings.n) if lengths[row] >= settings.min_tokens else np.zeros(0, np.uint64) for row in range(batch.size)]
    offsets = np.concatenate([[0], np.cumsum([len(found) for found in grams])]).astype(np.uint64)
    flat = np.concatenate([*grams, np.zeros(0, np.uint64)])
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(flat, offsets, settings.permutations, _SEED)
    rows = np.array(matrix.to_rows(), dtype=np.uint32).reshape(batch.size, settings.permutations)
    rows[[len(found) == 0 for found in grams]] = 0
    return rows


@across("near_duplicates", "No other row has almost the same answer: the share of common n-grams, estimated by MinHash, stays below the limit.", signatures)
def near_duplicates(facts: NDArray[Any], name: Names, settings: NearDuplicateSection) -> Iterator[Complaint]:
    best: dict[int, tuple[int, float]] = {}
    width = settings.permutations // settings.bands
    for band in range(settings.bands):
        key = np.zeros(len(facts), dtype=np.uint64)
        for column in range(band * width, (band + 1) * width):
            key = mix(key * np.uint64(31) + facts[:, column].astype(np.uint64) + np.uint64(1))
        key[~facts.any(axis=1)] = _NONE
        for row, first in repeats(key):
            if row in best and best[row][0] <= first:
                continue
            similarity = float(np.mean(facts[row] == facts[first]))
            if similarity >= settings.min_similarity:
                best[row] = (first, similarity)
    for row in sorted(best):
        first, similarity = best[row]
        yield Complaint(row, None, f"about {similarity:.0%} the same {settings.n}-grams as {name(first)}")
