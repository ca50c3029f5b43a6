"""`python -m pipeline reconstruct`: token ids of responses that you already have."""

import argparse
from pathlib import Path
from typing import Any

from pipeline.answers.rows import RowMaker
from pipeline.core.files.json_file import write_json
from pipeline.core.files.overwrite_check import refuse_overwriting
from pipeline.project.targets import open_target
from pipeline.stages.reconstruct.summary_table import table
from pipeline.stages.reconstruct.user_file import check_responses, rebuild_responses


def main(argv: list[str]) -> int:
    """Rebuild the responses of a file; print the summary.

    Raises:
        AerieError: the file or the target is missing or wrong, or the file is empty. A bad line is not an error: it
            becomes a rejected row.
    """
    arguments = _parser().parse_args(argv)
    check_responses(arguments.responses)
    refuse_overwriting([arguments.responses], [arguments.out, arguments.summary])
    maker = RowMaker(*open_target(arguments.target), send_tools=not arguments.no_tools)
    document, rejected = rebuild_responses(arguments.responses, maker, arguments.out, arguments.workers)
    if arguments.summary:
        write_json(arguments.summary, document)
    print(table(document))
    print(_remarks(document, rejected), end="")
    return 0


def _remarks(document: dict[str, Any], rejected: list[str]) -> str:
    """Return lines on rejected rows and repeated ids; empty when there are none."""
    lines = []
    if rejected:
        lines += [f"rejected, the first of {document['status']['reject']}:", *(f"  {row!r}" for row in rejected)]
    if document["status"]["reject"] == document["rows"]:
        lines.append(
            "no row could be rebuilt: is this JSONL with one response a line, each "
            "`{id, response}`, a bare body, or `{id, reasoning, content, usage}`?"
        )
    repeated = document["repeated_ids"]
    if repeated["ids"]:
        lines.append(
            f"{repeated['ids']} ids come more than once ({repeated['rows']} rows; {repeated['example']!r}): "
            "all are kept, but extraction needs each id once"
        )
    return "".join(f"{line}\n" for line in lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline reconstruct", description=__doc__)
    parser.add_argument("--target", required=True, help="a name under conf/target/, or the path of a fingerprint.json")
    parser.add_argument(
        "--responses",
        required=True,
        type=Path,
        help="JSONL (.gz, .zst too), on each line {id, messages?, tools?, response}, a bare body, "
        "{id, reasoning, content, tool_calls, usage}, or output_ids",
    )
    parser.add_argument(
        "--out",
        required=True,
        type=Path,
        help="tokens.parquet to write: a row for each line that is not empty, in order",
    )
    parser.add_argument("--summary", type=Path, help="where to write the summary as JSON as well")
    parser.add_argument(
        "--no-tools", action="store_true", help="the tools were not sent, so the prompt does not hold them"
    )
    parser.add_argument("--workers", type=int, help="cores to use; the result does not depend on it")
    return parser
