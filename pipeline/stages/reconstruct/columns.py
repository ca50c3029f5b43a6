"""Arrow columns from rows, without a Python object for each id."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

import pyarrow as pa

from pipeline.answers.rows import PackedRow
from pipeline.answers.segmented_ids import ID_BYTES, Span
from pipeline.formats.schema.tokens import SCHEMA


def record_batch(rows: Sequence[PackedRow]) -> pa.RecordBatch:
    """Put rows into the columns of SCHEMA, in order; there is at least one row."""
    fields = dict(zip(PackedRow._fields, zip(*rows, strict=True), strict=True))
    lists = {
        "prompt_ids": _ids(fields["prompt"]),
        "completion_ids": _ids(fields["completion"]),
        "segments": _segments(fields["spans"]),
        "notes": _notes(fields["notes"]),
    }
    arrays = [
        lists[field.name] if field.name in lists else pa.array(fields[field.name], field.type) for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches in the columns of SCHEMA."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _lists(lengths: Iterable[int], values: pa.Array, name: str) -> pa.ListArray:
    """Make a list column from its values and the lengths of its lists."""
    return pa.ListArray.from_arrays(
        pa.array(list(accumulate(lengths, initial=0)), pa.int32()), values, type=SCHEMA.field(name).type
    )


def _ids(buffers: Sequence[bytes]) -> pa.ListArray:
    """Make a list<int32> column from buffers of little-endian uint32; ids are below 2**31."""
    whole = b"".join(buffers)
    # From a numpy array instead of a buffer, pyarrow would import numpy.ma.
    values = pa.Array.from_buffers(pa.int32(), len(whole) // ID_BYTES, [None, pa.py_buffer(whole)])
    return _lists((len(buffer) // ID_BYTES for buffer in buffers), values, "completion_ids")


def _segments(rows: Sequence[Sequence[Span]]) -> pa.ListArray:
    kind = SCHEMA.field("segments").type.value_type
    parts = tuple(zip(*chain.from_iterable(rows), strict=True)) or ((), (), ())
    values = pa.StructArray.from_arrays(
        [pa.array(part, field.type) for part, field in zip(parts, kind, strict=True)], fields=list(kind)
    )
    return _lists(map(len, rows), values, "segments")


def _notes(rows: Sequence[Sequence[str]]) -> pa.ListArray:
    return _lists(map(len, rows), pa.array(list(chain.from_iterable(rows)), pa.string()), "notes")
