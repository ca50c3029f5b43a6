"""Parquet files: the columns are declared by the schema module of the artifact, checked on reading, atomic on writing.

Apart from `artifacts` so that stages without tables start without pyarrow.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.core.errors import ArtifactError, InputError
from pipeline.core.files import open_gzip, open_plain, read_start, writing

if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
    pa.set_memory_pool(
        pa.system_memory_pool()
    )  # Arrow's usual one hands each batch's pages back to the system, only to ask for them again for the next

BATCH_ROWS = 2048
"""Rows handed over at a time; memory is flat in the number of rows."""

VALUES_AT_ONCE = 1 << 20
"""Values that the writer encodes at a time, which is also how large a page of ids may become; by 1,024, as is usual, it takes a fifth longer."""

_VERSION_KEY = b"aerie.schema"


def versioned(fields: list[pa.Field], name: str, version: int) -> pa.Schema:
    """Give a schema that carries its own name and version, as ``name/version``."""
    return pa.schema(fields, metadata={_VERSION_KEY: f"{name}/{version}".encode()})


def write_rows(path: Path, schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as Parquet (zstd), in the order given; equal rows give equal bytes. Return how many."""
    count = 0
    with writing(path) as file, pq.ParquetWriter(file, schema, compression="zstd", write_statistics=True) as writer:
        batch: list[dict[str, Any]] = []
        for row in rows:
            batch.append(row)
            if len(batch) == BATCH_ROWS:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                count += len(batch)
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, schema=schema))
        count += len(batch)
    return count


def write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write record batches as Parquet (zstd), a row group each, in the order given; equal batches give equal bytes. Return how many rows.

    Without dictionaries: for columns of token ids they cost twice the time and give larger files. Arrow writes to the file itself: a file of
    Python's would make each of its many small writes wait for the interpreter, while the next batch is made.
    """
    count = 0
    with (
        writing(path) as file,
        pa.OSFile(file.name, "wb") as sink,
        pq.ParquetWriter(
            sink, schema, compression="zstd", use_dictionary=False, write_batch_size=VALUES_AT_ONCE
        ) as writer,
        ThreadPoolExecutor(1) as beside,
    ):
        written: Future[None] | None = None
        for batch in batches:
            if written is not None:
                written.result()
            written = beside.submit(writer.write_batch, batch)
            count += batch.num_rows
        if written is not None:
            written.result()
    return count


def open_table(path: Path, schema: pa.Schema) -> pq.ParquetFile:
    """Open a Parquet file and check that it has the columns of ``schema``, with their types.

    Raises:
        InputError: missing, cut short, not Parquet, columns missing or of another type, or another schema version.

    """
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: not a whole Parquet file: {error}") from error
    found = file.schema_arrow
    missing = [name for name in schema.names if name not in found.names]
    if missing:
        raise InputError(f"{path}: lacks the columns {missing}; it has {found.names}; needed are {schema.names}")
    wrong = [
        f"{field.name} is {found.field(field.name).type}, needed {field.type}"
        for field in schema
        if found.field(field.name).type != field.type
    ]
    if wrong:
        raise InputError(f"{path}: columns of another type: {'; '.join(wrong)}")
    wanted, got = (s.metadata or {} for s in (schema, found))
    if _VERSION_KEY in got and got[_VERSION_KEY] != wanted.get(_VERSION_KEY):
        raise ArtifactError(
            f"{path}: schema {got[_VERSION_KEY].decode()}, this code reads {wanted[_VERSION_KEY].decode()}: run `dvc repro`"
        )
    return file


def read_rows(path: Path, schema: pa.Schema) -> Iterator[dict[str, Any]]:
    """Rows of a Parquet file in order, a batch in memory at a time.

    Raises:
        InputError: as `open_table`; or a page of the file is damaged.

    """
    file = open_table(path, schema)
    try:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=schema.names):
            yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: damaged Parquet file: {error}") from error


def read_batches(path: Path, schema: pa.Schema, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Rows of a Parquet file in order, as Arrow batches of at most ``rows``.

    Raises:
        InputError: as `open_table`; or a page of the file is damaged.

    """
    file = open_table(path, schema)
    try:
        yield from file.iter_batches(batch_size=rows, columns=schema.names, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: damaged Parquet file: {error}") from error


def flat_lists(column: pa.ListArray) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Flat values of a column of lists, a slice of a larger one too, and where each list begins; [rows + 1], the last one the end."""
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    values = column.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy(zero_copy_only=False)
    return values, offsets - offsets[0]


def table_columns(path: Path) -> list[str]:
    """Names of a Parquet file's columns, whatever they are.

    Raises:
        InputError: missing, cut short, or not Parquet.

    """
    try:
        return list(pq.ParquetFile(path).schema_arrow.names)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: not a whole Parquet file: {error}") from error


def read_columns(path: Path, columns: list[str], rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Some columns of any Parquet file, with the types that they have there.

    Raises:
        InputError: the file is damaged.

    """
    try:
        yield from pq.ParquetFile(path).iter_batches(batch_size=rows, columns=columns, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: damaged Parquet file: {error}") from error


@contextlib.contextmanager
def writing_table(path: Path, schema: pa.Schema) -> Iterator["TableWriter"]:
    """Open a Parquet file (zstd) for writing a batch at a time; it appears, whole, only when the block ends well.

    Raises:
        DiskError: as `artifacts.writing`.

    """
    with writing(path) as file, pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
        table = TableWriter(writer, schema)
        yield table
        table.flush(0)


class TableWriter:
    """Gathers batches and writes row groups of BATCH_ROWS, so that equal rows give equal bytes however they were handed over."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self.count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch in the columns of the schema."""
        self._waiting.append(batch.cast(self._schema))
        self._rows += batch.num_rows
        self.count += batch.num_rows
        self.flush(BATCH_ROWS)

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """Append rows."""
        if rows:
            self.write(pa.RecordBatch.from_pylist(rows, schema=self._schema))

    def flush(self, group: int) -> None:
        """Write what waits, in row groups; with ``group`` 0 the last, shorter one too."""
        while self._rows and self._rows >= group:
            table = pa.Table.from_batches(self._waiting, schema=self._schema).combine_chunks()
            self._writer.write_table(table.slice(0, BATCH_ROWS))
            self._waiting = table.slice(BATCH_ROWS).to_batches()
            self._rows = max(self._rows - BATCH_ROWS, 0)


def read_any(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a Parquet file that a user brought, whatever its columns, a batch in memory at a time.

    Raises:
        InputError: missing, not Parquet, or damaged.

    """
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: not a whole Parquet file: {error}") from error


def opener_of(path: Path) -> Callable[[Path], IO[bytes]]:
    """How to open a file of lines: as gzip, as zstd, or as it is; its first bytes tell, not its name."""
    start = read_start(path, 4) if path.is_file() else b""
    return next((opener for magic, opener in _PACKED.items() if start.startswith(magic)), open_plain)


def open_zstd(path: Path) -> IO[bytes]:
    """Open a zstd file for reading what it holds.

    Raises:
        OSError: the file is missing; reading raises it when the file is cut short or no zstd.

    """
    return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))


_PACKED = {b"\x1f\x8b": open_gzip, b"\x28\xb5\x2f\xfd": open_zstd}
