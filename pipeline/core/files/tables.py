"""Parquet files: the schema is checked on reading, and writing is atomic.

This module imports pyarrow, so a stage without tables does not import it.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.core.errors import ArtifactError, InputError
from pipeline.core.files.atomic import writing

if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
    # Arrow's default pool returns the pages of each batch to the system, only to ask for them again for the next one
    pa.set_memory_pool(pa.system_memory_pool())

BATCH_ROWS = 2048
"""Rows per batch: memory does not grow with the number of rows."""

VALUES_PER_CHUNK = 1 << 20
"""Values that the writer encodes at a time, and the most values in a page of ids.

Arrow's default of 1,024 takes a fifth longer.
"""

_VERSION_KEY = b"aerie.schema"


def versioned(fields: list[pa.Field], name: str, version: int) -> pa.Schema:
    """Make a schema whose metadata has its name and version, as ``name/version``."""
    return pa.schema(fields, metadata={_VERSION_KEY: f"{name}/{version}".encode()})


def write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write record batches as Parquet (zstd), one row group per batch; return the number of rows.

    The order is kept, and equal batches give equal bytes. Dictionary encoding is off: for columns of token ids it takes
    twice the time and gives larger files. Arrow writes to the file itself, in a thread: through a Python file object,
    each of its many small writes would wait for the interpreter's lock while the next batch is made.

    Raises:
        DiskError: as `writing`.

    """
    count = 0
    with (
        writing(path) as file,
        pa.OSFile(file.name, "wb") as sink,
        pq.ParquetWriter(
            sink, schema, compression="zstd", use_dictionary=False, write_batch_size=VALUES_PER_CHUNK
        ) as writer,
        ThreadPoolExecutor(1) as thread,
    ):
        pending: Future[None] | None = None
        for batch in batches:
            if pending is not None:
                pending.result()
            pending = thread.submit(writer.write_batch, batch)
            count += batch.num_rows
        if pending is not None:
            pending.result()
    return count


def open_table(path: Path, schema: pa.Schema) -> pq.ParquetFile:
    """Open a Parquet file and check that it has the columns of ``schema``, with their types.

    Raises:
        InputError: the file is missing, cut short, not Parquet, or lacks a column or has one of another type.
        ArtifactError: the file has another version of the schema.

    """
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: not a whole Parquet file: {error}") from error
    file_schema = file.schema_arrow
    missing = [name for name in schema.names if name not in file_schema.names]
    if missing:
        raise InputError(f"{path}: lacks the columns {missing}; it has {file_schema.names}; needed are {schema.names}")
    mismatches = [
        f"{field.name} is {file_schema.field(field.name).type}, needed {field.type}"
        for field in schema
        if file_schema.field(field.name).type != field.type
    ]
    if mismatches:
        raise InputError(f"{path}: columns of another type: {'; '.join(mismatches)}")
    needed, actual = (s.metadata or {} for s in (schema, file_schema))
    if _VERSION_KEY in actual and actual[_VERSION_KEY] != needed.get(_VERSION_KEY):
        raise ArtifactError(
            f"{path}: schema {actual[_VERSION_KEY].decode()}, this code reads {needed[_VERSION_KEY].decode()}: "
            "run `dvc repro`"
        )
    return file


def read_rows(path: Path, schema: pa.Schema) -> Iterator[dict[str, Any]]:
    """Give the rows of a Parquet file in order, with one batch in memory at a time.

    Raises:
        InputError: as `open_table`; or a page of the file is damaged.
        ArtifactError: as `open_table`.

    """
    file = open_table(path, schema)
    try:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=schema.names):
            yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: damaged Parquet file: {error}") from error


def read_batches(path: Path, schema: pa.Schema, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Give the rows of a Parquet file in order, as Arrow batches of at most ``rows``.

    Raises:
        InputError: as `open_table`; or a page of the file is damaged.
        ArtifactError: as `open_table`.

    """
    file = open_table(path, schema)
    try:
        yield from file.iter_batches(batch_size=rows, columns=schema.names, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: damaged Parquet file: {error}") from error


def flat_lists(column: pa.ListArray) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the flat values of a column of lists, [values], and the offset at which each list begins, [rows + 1].

    The last offset is the end of the last list. A column that is a slice of a larger one gives only its own values.
    """
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    values = column.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy(zero_copy_only=False)
    return values, offsets - offsets[0]


def table_columns(path: Path) -> list[str]:
    """Return the names of a Parquet file's columns, of any schema.

    Raises:
        InputError: the file is missing, cut short, or not Parquet.

    """
    try:
        return list(pq.ParquetFile(path).schema_arrow.names)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: not a whole Parquet file: {error}") from error


def read_columns(path: Path, columns: list[str], rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Give some columns of a Parquet file of any schema, with the types that they have there.

    Raises:
        InputError: the file is damaged.

    """
    try:
        yield from pq.ParquetFile(path).iter_batches(batch_size=rows, columns=columns, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: damaged Parquet file: {error}") from error


@contextlib.contextmanager
def writing_table(path: Path, schema: pa.Schema) -> Iterator["TableWriter"]:
    """Open a Parquet file (zstd) for writing in batches of any size; it appears when the block ends without an error.

    Raises:
        DiskError: as `writing`.

    """
    with writing(path) as file, pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
        table = TableWriter(writer, schema)
        yield table
        table.flush(0)


class TableWriter:
    """A Parquet file under construction: rows go out in row groups of BATCH_ROWS.

    So equal rows give equal bytes, however they were divided into batches.
    """

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self.count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch with the columns of the schema."""
        self._pending.append(batch.cast(self._schema))
        self._pending_rows += batch.num_rows
        self.count += batch.num_rows
        self.flush(BATCH_ROWS)

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """Append rows."""
        if rows:
            self.write(pa.RecordBatch.from_pylist(rows, schema=self._schema))

    def flush(self, group_rows: int) -> None:
        """Write pending rows while there are at least ``group_rows``; 0 writes the last, shorter row group too."""
        while self._pending_rows and self._pending_rows >= group_rows:
            table = pa.Table.from_batches(self._pending, schema=self._schema).combine_chunks()
            self._writer.write_table(table.slice(0, BATCH_ROWS))
            self._pending = table.slice(BATCH_ROWS).to_batches()
            self._pending_rows = max(self._pending_rows - BATCH_ROWS, 0)


def read_any(path: Path) -> Iterator[dict[str, Any]]:
    """Give the rows of a user's Parquet file, of any schema, with one batch in memory at a time.

    Raises:
        InputError: the file is missing, not Parquet, or damaged.

    """
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: not a whole Parquet file: {error}") from error
