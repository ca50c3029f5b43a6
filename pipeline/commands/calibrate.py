"""`python -m pipeline calibrate`: how exact reconstruction is, on answers whose ids are known."""

import argparse
from pathlib import Path
from typing import Any

from pipeline.core.files.json_file import write_json
from pipeline.core.files.overwrite_check import refuse_overwriting
from pipeline.project.targets import open_target
from pipeline.stages.calibrate.table import simulated_table, table
from pipeline.stages.calibrate.truth_file import TruthFile


def main(argv: list[str]) -> int:
    """Compare; write the report; print its tables.

    Raises:
        AerieError: the file or target is missing or wrong, or no line holds true ids.

    """
    arguments = _parser().parse_args(argv)
    refuse_overwriting([arguments.truth], [arguments.out])
    report = TruthFile(arguments.truth, *open_target(arguments.target)).report()
    write_json(arguments.out, report)
    _print(report)
    return 0


def _print(report: dict[str, Any]) -> None:
    if report["without_truth"]:
        print(
            f"{report['without_truth']} of {report['lines']} lines are left out: "
            "they have no output_ids that are a list of ids"
        )
    if report["received"].get("rows"):
        print(table(report["received"], "responses as received"))
    print("simulated from the true ids, by habit of the provider")
    print(simulated_table(report["simulated"]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline calibrate", description=__doc__)
    parser.add_argument("--target", required=True, help="a name under conf/target/, or the path of a fingerprint.json")
    parser.add_argument(
        "--truth",
        required=True,
        type=Path,
        help="JSONL, on each line {id, output_ids, response?, messages?, tools?, dataset?}",
    )
    parser.add_argument("--out", required=True, type=Path, help="report.json to write")
    return parser
