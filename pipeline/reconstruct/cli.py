"""`python -m pipeline reconstruct --target NAME --responses in.jsonl --out tokens.parquet`: for people who have responses already."""

import argparse
from functools import partial
from pathlib import Path

from pipeline.answers.rows import RowMaker
from pipeline.artifacts import write_json
from pipeline.errors import InputError
from pipeline.reconstruct.sources import file_lines, file_to_job
from pipeline.reconstruct.stage import rebuild_file
from pipeline.reconstruct.summary import table
from pipeline.reconstruct.work import workers_for
from pipeline.targets import open_target


def main(argv: list[str]) -> int:
    """Rebuild the responses of a file; print the summary.

    Raises:
        AerieError: the file or the target is missing or wrong. A bad line is no error: it becomes a rejected row.

    """
    arguments = _parser().parse_args(argv)
    if not arguments.responses.is_file():
        raise InputError(f"{arguments.responses}: no such file; --responses takes a JSONL file, one response a line")
    record, tokenizer = open_target(arguments.target)
    maker = RowMaker(record, tokenizer, send_tools=not arguments.no_tools)
    workers = workers_for(arguments.responses.stat().st_size, arguments.workers)
    document = rebuild_file(partial(file_lines, arguments.responses), file_to_job, maker, arguments.out, workers)
    if arguments.summary:
        write_json(arguments.summary, document)
    print(table(document))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline reconstruct", description=__doc__)
    parser.add_argument("--target", required=True, help="a name under conf/target/, or the path of a fingerprint.json")
    parser.add_argument("--responses", required=True, type=Path, help="JSONL: {id, messages?, tools?, response} a line, or bare bodies, or fields of answers")
    parser.add_argument("--out", required=True, type=Path, help="tokens.parquet to write")
    parser.add_argument("--summary", type=Path, help="where to write the summary as JSON as well")
    parser.add_argument("--no-tools", action="store_true", help="the tools were not sent, so the prompt does not hold them")
    parser.add_argument("--workers", type=int, help="processes; the result does not depend on it")
    return parser
