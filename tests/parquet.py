"""Tables of rows for tests and benchmarks."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.core.files.tables import BATCH_ROWS, write_batches


def write_rows(path: Path, schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as Parquet, with one batch in memory at a time; return how many."""
    remaining = iter(rows)
    parts = iter(lambda: list(islice(remaining, BATCH_ROWS)), [])
    return write_batches(path, schema, (pa.RecordBatch.from_pylist(part, schema=schema) for part in parts))
