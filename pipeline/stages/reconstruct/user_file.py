"""Reconstruction of a user's own file of responses."""

from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.answers.rows import RowMaker
from pipeline.core.errors import InputError
from pipeline.core.files.contents import read_start
from pipeline.core.files.tables import read_columns
from pipeline.stages.reconstruct.batches import workers_for
from pipeline.stages.reconstruct.sources import file_lines, file_to_job
from pipeline.stages.reconstruct.stage import rebuild_file

SHOWN = 5
"""Most rejected rows that are described."""
PARQUET = b"PAR1"
"""First bytes of a Parquet file."""
PACKED = 4
"""Rough ratio of a file's content to its packed size; the number of processes depends on the content."""


class RebuiltFile(NamedTuple):
    """The outcome for a user's file."""

    document: dict[str, Any]
    """As in reconstruct.json, with `repeated_ids`: ids that several rows have."""
    rejected: list[str]
    """Descriptions of the first rejected rows."""


def check_responses(path: Path) -> None:
    """Refuse a file that cannot hold responses.

    Raises:
        InputError: the path is not a regular file, or the file is missing, empty or Parquet.

    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: not a regular file; it is read twice, so save the output of a pipe to a file first")
    if not path.is_file():
        raise InputError(f"{path}: no such file; --responses takes a JSONL file with one response a line")
    if read_start(path, len(PARQUET)) == PARQUET:
        raise InputError(
            f"{path}: Parquet; --responses takes a JSONL file with one response a line. "
            "`audit --tokens` takes ids in Parquet"
        )
    if next(file_lines(path), None) is None:
        raise InputError(f"{path}: empty; --responses takes a JSONL file with one response a line")


def rebuild_responses(path: Path, maker: RowMaker, tokens: Path, workers: int | None) -> RebuiltFile:
    """Write tokens.parquet for the responses of a file; `workers` is the number of processes, None for as many as pay.

    A bad line is not an error: it becomes a rejected row.

    Raises:
        AerieError: a file cannot be read or written, or a worker process died.

    """
    size = path.stat().st_size * (PACKED if path.suffix in (".gz", ".zst") else 1)
    document = rebuild_file(partial(file_lines, path), file_to_job, maker, tokens, workers_for(size, workers))
    return RebuiltFile({**document, "repeated_ids": _repeated_ids(tokens)}, _rejected_rows(tokens))


def _repeated_ids(tokens: Path) -> dict[str, Any]:
    """Count the ids that several rows have; eight bytes a row are held in memory."""
    hashes = [np.fromiter(map(hash, batch.column(0).to_pylist()), np.int64) for batch in read_columns(tokens, ["id"])]
    values, counts = np.unique(np.concatenate(hashes), return_counts=True)
    repeated = set(values[counts > 1].tolist())
    ids = (row_id for batch in read_columns(tokens, ["id"]) for row_id in batch.column(0).to_pylist())
    return {
        "ids": len(repeated),
        "rows": int(counts[counts > 1].sum()),
        "example": next((row_id for row_id in ids if hash(row_id) in repeated), None) if repeated else None,
    }


def _rejected_rows(tokens: Path) -> list[str]:
    rejected = (
        row
        for batch in read_columns(tokens, ["id", "status", "reason", "notes"])
        for row in batch.to_pylist()
        if row["status"] == "reject"
    )
    return [": ".join((row["id"], row["reason"], *row["notes"][:1])) for row in islice(rejected, SHOWN)]
