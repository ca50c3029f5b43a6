"""What is kept of each row to compare it with all others: written to a file as batches come, and read back a column at a time."""

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
"""[rows] uint64, 0 for nothing to compare; or [rows, width] uint16, zeros for nothing to compare."""


def to_sketch(ids: Any, facts: dict[str, Facts]) -> pa.RecordBatch:
    """Rows in the columns of schema/sketch.py; ``facts`` by column, those that no check keeps are null."""
    columns = [
        ids if name == "id" else _column(facts[name]) if name in facts else pa.nulls(len(ids), SCHEMA.field(name).type)
        for name in SCHEMA.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _column(facts: Facts) -> pa.Array:
    if facts.ndim == 1:
        return pa.array(facts, mask=facts == 0)
    written, width = np.ascontiguousarray(facts, dtype="<u2").tobytes(), facts.shape[1] * 2
    return pa.array(
        [written[row * width : (row + 1) * width] if some else None for row, some in enumerate(np.any(facts, axis=1))],
        pa.binary(),
    )


@dataclass(frozen=True)
class Sketch:
    """A dataset's rows as others are compared with them."""

    name: str
    """Of the dataset; empty for the one that is audited."""
    rows: int
    batches: Callable[[str], Iterator[pa.Array]]
    """One column, again and again, in pieces."""


def in_file(name: str, path: Path, rows: int) -> Sketch:
    """Rows of a sketch.parquet."""
    return Sketch(name, rows, lambda column: (batch.column(0) for batch in read_columns(path, [column], 1 << 14)))


def in_memory(name: str, batches: Sequence[pa.RecordBatch]) -> Sketch:
    """Rows that are not worth a file."""
    return Sketch(
        name, sum(batch.num_rows for batch in batches), lambda column: (batch.column(column) for batch in batches)
    )


def facts_of(sketches: Sequence[Sketch], column: str) -> Facts:
    """One column of all rows, as the checks take it; a signature of another width than the first counts as none."""
    rows = sum(sketch.rows for sketch in sketches)
    plain = SCHEMA.field(column).type == pa.uint64()
    found: Facts = np.zeros(rows, dtype=np.uint64) if plain else np.zeros((rows, 0), dtype=np.uint16)
    start = 0
    for piece in (piece for sketch in sketches for piece in sketch.batches(column)):
        part = slice(start, start + len(piece))
        start += len(piece)
        if plain:
            found[part] = piece.fill_null(0).to_numpy(zero_copy_only=False)
            continue
        lengths = pc.binary_length(piece).fill_null(0).to_numpy(zero_copy_only=False)
        if not found.shape[1]:
            found = np.zeros((rows, int(lengths[lengths > 0][0]) // 2 if lengths.any() else 0), dtype=np.uint16)
        same = (lengths == 2 * found.shape[1]) & (lengths > 0)
        found[part][same] = np.frombuffer(b"".join(piece.filter(pa.array(same)).to_pylist()), dtype="<u2").reshape(
            -1, found.shape[1] or 1
        )
    return found


class Names:
    """Ids of all rows of some sketches; read when the first is asked for."""

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        self._sketches = sketches
        self._pieces: list[tuple[str, pa.Array]] = []
        self._starts: list[int] = [0]

    def of(self, row: int) -> tuple[str, str]:
        """Name of the dataset of a row, and the row's id in it."""
        if not self._pieces:
            self._pieces = [(sketch.name, piece) for sketch in self._sketches for piece in sketch.batches("id")]
            self._starts = np.cumsum([0, *(len(piece) for _name, piece in self._pieces)]).tolist()
        chunk = bisect_right(self._starts, row) - 1
        name, piece = self._pieces[chunk]
        return name, piece[row - self._starts[chunk]].as_py()

    def __call__(self, row: int) -> str:
        """Id of a row, with the dataset's name before it where it is another one."""
        name, row_id = self.of(row)
        return f"{name}:{row_id}" if name else row_id
