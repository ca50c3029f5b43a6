"""Rows to Arrow, without a Python object for each id."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.answers.assemble import WIDTH
from pipeline.answers.rows import Row
from pipeline.schema.tokens import SCHEMA


def record_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows in the columns of SCHEMA, in order."""
    columns = {
        "prompt_ids": _ids([row.prompt for row in rows]),
        "completion_ids": _ids([row.completion for row in rows]),
        "segments": _segments(rows),
        "notes": _notes(rows),
    }
    arrays = [columns.get(field.name) if field.name in columns else pa.array([getattr(row, field.name) for row in rows], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _offsets(lengths: list[int]) -> Any:
    return pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))


def _ids(buffers: list[bytes]) -> Any:
    """Buffers of little-endian uint32 as a list<int32> column; ids are below 2**31."""
    values = pa.array(np.frombuffer(b"".join(buffers), dtype="<i4"))
    return pa.ListArray.from_arrays(_offsets([len(buffer) // WIDTH for buffer in buffers]), values, type=SCHEMA.field("completion_ids").type)


def _segments(rows: Sequence[Row]) -> Any:
    spans = [span for row in rows for span in row.spans]
    kind = SCHEMA.field("segments").type
    values = pa.StructArray.from_arrays(
        [
            pa.array([span.kind for span in spans], pa.string()),
            pa.array([span.start for span in spans], pa.int32()),
            pa.array([span.end for span in spans], pa.int32()),
        ],
        fields=list(kind.value_type),
    )
    return pa.ListArray.from_arrays(_offsets([len(row.spans) for row in rows]), values, type=kind)


def _notes(rows: Sequence[Row]) -> Any:
    values = pa.array([note for row in rows for note in row.notes], pa.string())
    return pa.ListArray.from_arrays(_offsets([len(row.notes) for row in rows]), values, type=SCHEMA.field("notes").type)


class Counted(NamedTuple):
    """What a row that was written counts by."""

    provider: str | None
    status: str
    evidence: str | None
    completion: memoryview
    """Ids, little-endian."""
    reason: str | None
    notes: list[str]


def counted(batch: pa.RecordBatch) -> Iterator[Counted]:
    """Rows of a batch in the columns of SCHEMA, as the summary counts them."""
    completions = batch.column("completion_ids")
    edges, values = completions.offsets.to_pylist(), memoryview(completions.values.to_numpy()).cast("B")
    ids = [values[WIDTH * start : WIDTH * end] for start, end in pairwise(edges)]
    provider, status, evidence, reason, notes = (batch.column(name).to_pylist() for name in ("provider", "status", "evidence", "reason", "notes"))
    return map(Counted, provider, status, evidence, ids, reason, notes)
