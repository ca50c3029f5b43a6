"""`python -m pipeline reconstruct --target NAME --responses in.jsonl --out tokens.parquet`: for people who have responses already."""

import argparse
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.answers.rows import RowMaker
from pipeline.core.errors import InputError
from pipeline.core.files.contents import read_start
from pipeline.core.files.json_file import write_json
from pipeline.core.files.overwrite_check import refuse_overwriting
from pipeline.core.files.tables import read_columns
from pipeline.project.targets import open_target
from pipeline.stages.reconstruct.batches import workers_for
from pipeline.stages.reconstruct.sources import file_lines, file_to_job
from pipeline.stages.reconstruct.stage import rebuild_file
from pipeline.stages.reconstruct.summary import table

SHOWN = 5
"""Rejected rows that are shown."""
PARQUET = b"PAR1"
"""How a Parquet file begins."""
PACKED = 4
"""Times that a packed file grows, roughly: how many processes are worth starting is decided by what there is to read."""


def main(argv: list[str]) -> int:
    """Rebuild the responses of a file; print the summary.

    Raises:
        AerieError: the file or the target is missing or wrong, or the file is empty. A bad line is no error: it becomes a rejected row.

    """
    arguments = _parser().parse_args(argv)
    path: Path = arguments.responses
    if path.exists() and not path.is_file():
        raise InputError(
            f"{path}: not a regular file; it is read twice, so save what comes through a pipe to a file first"
        )
    if not path.is_file():
        raise InputError(f"{path}: no such file; --responses takes a JSONL file, one response a line")
    if read_start(path, len(PARQUET)) == PARQUET:
        raise InputError(
            f"{path}: Parquet; --responses takes a JSONL file, one response a line. `audit --tokens` takes ids in Parquet"
        )
    refuse_overwriting([path], [arguments.out, arguments.summary])
    if next(file_lines(path), None) is None:
        raise InputError(f"{path}: empty; --responses takes a JSONL file, one response a line")
    record, tokenizer = open_target(arguments.target)
    maker = RowMaker(record, tokenizer, send_tools=not arguments.no_tools)
    size = path.stat().st_size * (PACKED if path.suffix in (".gz", ".zst") else 1)
    document = rebuild_file(
        partial(file_lines, path), file_to_job, maker, arguments.out, workers_for(size, arguments.workers)
    )
    repeated, rejected = look_at(arguments.out)
    document["repeated_ids"] = repeated
    if arguments.summary:
        write_json(arguments.summary, document)
    print(table(document))
    print(_remarks(document, rejected), end="")
    return 0


def look_at(tokens: Path) -> tuple[dict[str, Any], list[str]]:
    """What only the whole table shows: ids that come more than once, and the first rejected rows. Eight bytes a row are kept."""
    digests = [np.fromiter(map(hash, batch.column(0).to_pylist()), np.int64) for batch in read_columns(tokens, ["id"])]
    values, counts = np.unique(np.concatenate(digests), return_counts=True)
    again = set(values[counts > 1].tolist())
    names = (
        name for batch in read_columns(tokens, ["id"]) for name in batch.column(0).to_pylist() if hash(name) in again
    )
    repeated = {
        "ids": len(again),
        "rows": int(counts[counts > 1].sum()),
        "example": next(names, None) if again else None,
    }
    rows = (
        row
        for batch in read_columns(tokens, ["id", "status", "reason", "notes"])
        for row in batch.to_pylist()
        if row["status"] == "reject"
    )
    return repeated, [": ".join((row["id"], row["reason"], *row["notes"][:1])) for row in islice(rows, SHOWN)]


def _remarks(document: dict[str, Any], rejected: list[str]) -> str:
    lines = (
        [f"rejected, the first of {document['status']['reject']}:", *(f"  {row!r}" for row in rejected)]
        if rejected
        else []
    )
    if document["status"]["reject"] == document["rows"]:
        lines.append(
            "no row could be rebuilt: is this JSONL, one response a line, each `{id, response}`, a bare body, or `{id, reasoning, content, usage}`?"
        )
    if (repeated := document["repeated_ids"])["ids"]:
        lines.append(
            f"{repeated['ids']} ids come more than once ({repeated['rows']} rows; {repeated['example']!r}): all are kept, but extraction needs each id once"
        )
    return "".join(f"{line}\n" for line in lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline reconstruct", description=__doc__)
    parser.add_argument("--target", required=True, help="a name under conf/target/, or the path of a fingerprint.json")
    parser.add_argument(
        "--responses",
        required=True,
        type=Path,
        help="JSONL (.gz, .zst too): {id, messages?, tools?, response} a line, bare bodies, {id, reasoning, content, tool_calls, usage}, or lines with output_ids",
    )
    parser.add_argument(
        "--out",
        required=True,
        type=Path,
        help="tokens.parquet to write: a row for each line, in order; empty lines count as none",
    )
    parser.add_argument("--summary", type=Path, help="where to write the summary as JSON as well")
    parser.add_argument(
        "--no-tools", action="store_true", help="the tools were not sent, so the prompt does not hold them"
    )
    parser.add_argument("--workers", type=int, help="cores to use; the result does not depend on it")
    return parser
