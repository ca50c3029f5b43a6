"""Prompts and answers that stand in more than one dataset of a build."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np

from pipeline.audit.grams import sequence_hash
from pipeline.tables import read_columns

PARTS = ("prompt_ids", "completion_ids")


def hashes(path: Path, column: str) -> Iterator[int]:
    """Hash of each row's ids that are not empty."""
    for batch in read_columns(path, [column], 1024):
        for ids in batch.column(column):
            if len(ids.values):
                yield sequence_hash(ids.values.to_numpy().astype(np.int32))


def shared(paths: dict[str, Path]) -> list[tuple[str, str, int, int]]:
    """For each pair of datasets with something in common: both names, distinct prompts and distinct answers that both have.

    Raises:
        InputError: a file is damaged.

    """
    seen = {name: [set(hashes(path, column)) for column in PARTS] for name, path in paths.items()}
    found = []
    for first, second in combinations(seen, 2):
        prompts, answers = (len(a & b) for a, b in zip(seen[first], seen[second], strict=True))
        if prompts or answers:
            found.append((first, second, prompts, answers))
    return found
