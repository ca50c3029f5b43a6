"""The sketch of a dataset: a few bytes of each row, by which all rows are compared.

It is written to a file batch by batch, and read back column by column.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.core.files.tables import read_columns
from pipeline.formats.schema.sketch import SCHEMA

Facts = NDArray[Any]
"""Hashes [rows] uint64 or signatures [rows, width] uint16; zeros for a row with nothing to compare."""


def to_sketch(ids: Any, facts: dict[str, Facts]) -> pa.RecordBatch:
    """Return rows in the columns of schema/sketch.py; a column that ``facts`` does not have is null."""
    columns = [
        ids if name == "id" else _column(facts[name]) if name in facts else pa.nulls(len(ids), SCHEMA.field(name).type)
        for name in SCHEMA.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _column(facts: Facts) -> pa.Array:
    if facts.ndim == 1:
        return pa.array(facts, mask=facts == 0)
    data, width = np.ascontiguousarray(facts, dtype="<u2").tobytes(), facts.shape[1] * 2
    comparable = np.any(facts, axis=1)
    return pa.array(
        [data[row * width : (row + 1) * width] if some else None for row, some in enumerate(comparable)], pa.binary()
    )


@dataclass(frozen=True)
class Sketch:
    """The rows of one dataset, for comparison."""

    name: str
    """Name of the dataset; empty for the one that is audited."""
    rows: int
    batches: Callable[[str], Iterator[pa.Array]]
    """Returns one column in pieces; may be called any number of times."""


def in_file(name: str, path: Path, rows: int) -> Sketch:
    """Return the sketch in a sketch.parquet."""
    return Sketch(name, rows, lambda column: (batch.column(0) for batch in read_columns(path, [column], 1 << 14)))


def in_memory(name: str, batches: Sequence[pa.RecordBatch]) -> Sketch:
    """Return a sketch of batches in memory."""
    return Sketch(
        name, sum(batch.num_rows for batch in batches), lambda column: (batch.column(column) for batch in batches)
    )


def facts_of(sketches: Sequence[Sketch], column: str) -> Facts:
    """Return one column of all sketches, as dataset checks take it.

    A signature whose width differs from the first one's counts as nothing to compare.
    """
    rows = sum(sketch.rows for sketch in sketches)
    plain = SCHEMA.field(column).type == pa.uint64()
    facts: Facts = np.zeros(rows, dtype=np.uint64) if plain else np.zeros((rows, 0), dtype=np.uint16)
    start = 0
    for piece in (piece for sketch in sketches for piece in sketch.batches(column)):
        part = slice(start, start + len(piece))
        start += len(piece)
        if plain:
            facts[part] = piece.fill_null(0).to_numpy(zero_copy_only=False)
            continue
        lengths = pc.binary_length(piece).fill_null(0).to_numpy(zero_copy_only=False)
        if not facts.shape[1]:
            facts = np.zeros((rows, int(lengths[lengths > 0][0]) // 2 if lengths.any() else 0), dtype=np.uint16)
        same = (lengths == 2 * facts.shape[1]) & (lengths > 0)
        facts[part][same] = np.frombuffer(b"".join(piece.filter(pa.array(same)).to_pylist()), dtype="<u2").reshape(
            -1, facts.shape[1] or 1
        )
    return facts


class RowNames:
    """The ids of all rows of some sketches, read when the first one is needed."""

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        self._sketches = sketches
        self._pieces: list[tuple[str, pa.Array]] = []
        self._starts: list[int] = [0]

    def of(self, row: int) -> tuple[str, str]:
        """Return the name of a row's dataset, and the row's id in it."""
        if not self._pieces:
            self._pieces = [(sketch.name, piece) for sketch in self._sketches for piece in sketch.batches("id")]
            self._starts = np.cumsum([0, *(len(piece) for _name, piece in self._pieces)]).tolist()
        chunk = bisect_right(self._starts, row) - 1
        name, piece = self._pieces[chunk]
        return name, piece[row - self._starts[chunk]].as_py()

    def __call__(self, row: int) -> str:
        """Return the id of a row, after `<dataset>:` where the dataset is not the audited one."""
        name, row_id = self.of(row)
        return f"{name}:{row_id}" if name else row_id
