"""Sketches: a file keeps them, and near-duplicates are those that comparing all pairs finds."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.core.files.tables import writing_table
from pipeline.formats.schema.sketch import SCHEMA
from pipeline.stages.audit.checks.duplicates import near_pairs, repeats
from pipeline.stages.audit.config import NearDuplicateSection
from pipeline.stages.audit.sketch import RowNames, facts_of, in_file, in_memory, to_sketch

SECTION = NearDuplicateSection(severity="info", permutations=32, bands=16)


def signatures(rows: int, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint16]]:
    """Return random signatures, signatures that differ from an earlier one in a few values, and empty ones."""
    choice = np.random.default_rng(seed)
    found = choice.integers(1, 1 << 16, (rows, 32)).astype(np.uint16)
    for row in range(1, rows):
        if choice.random() < 0.5:
            found[row] = found[choice.integers(row)]
            changed = choice.choice(32, choice.integers(0, 12), replace=False)
            found[row, changed] = choice.integers(1, 1 << 16, len(changed))
        if choice.random() < 0.1:
            found[row] = 0
    return found


def test_near_duplicates_are_much_alike_and_nearly_none_is_missed() -> None:
    for seed in range(3):
        facts = signatures(300, seed)
        rows, firsts, alike = near_pairs(facts, SECTION)
        assert (firsts < rows).all()
        assert (alike >= SECTION.min_similarity).all()
        assert np.allclose(alike, (facts[rows] == facts[firsts]).mean(axis=1))
        similar = (facts[:, None] == facts[None]).mean(axis=2) >= SECTION.min_similarity
        wanted = {row for row in range(300) if facts[row].any() and similar[row, :row].any()}
        assert set(rows.tolist()) <= wanted
        assert len(wanted - set(rows.tolist())) <= len(wanted) / 20


def test_repeats_name_the_first_row_with_the_same_hash_and_zeros_are_nothing() -> None:
    rows, firsts = repeats(np.array([7, 0, 5, 7, 0, 5, 7], dtype=np.uint64))
    assert (rows.tolist(), firsts.tolist()) == ([3, 5, 6], [0, 2, 0])


def test_a_sketch_in_a_file_and_one_in_memory_give_the_same_facts_and_names(tmp_path: Path) -> None:
    facts: dict[str, NDArray[Any]] = {
        "prompt": np.array([3, 0, 1 << 63], dtype=np.uint64),
        "signature": signatures(3, 0),
    }
    facts["signature"][1] = 0
    batch = to_sketch(pa.array(["a", "b", "c"]), facts)
    with writing_table(tmp_path / "s.parquet", SCHEMA) as file:
        file.write(batch)
    sketches = [in_memory("other", [batch]), in_file("", tmp_path / "s.parquet", 3)]
    for column, values in facts.items():
        assert (facts_of(sketches, column) == np.concatenate([values, values])).all()
    assert not facts_of(sketches, "completion").any()
    names = RowNames(sketches)
    assert [names(row) for row in (1, 4, 5)] == ["other:b", "b", "c"]


def test_signatures_of_another_width_are_no_signatures() -> None:
    narrow, wide = ({"signature": np.full((2, width), 9, dtype=np.uint16)} for width in (32, 64))
    found = facts_of([in_memory("", [to_sketch(pa.array(["a", "b"]), facts)]) for facts in (narrow, wide)], "signature")
    assert found.any(axis=1).tolist() == [True, True, False, False]
