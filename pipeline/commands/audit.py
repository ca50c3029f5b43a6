"""`python -m pipeline audit --target NAME --tokens FILE --out DIR`: a verdict on data from anywhere."""

import argparse
import sys
from pathlib import Path

from pipeline.project.file_audit import (
    AuditFiles,
    AuditRules,
    load_section,
    open_file_audit,
    refuse_to_overwrite_inputs,
    response_lines_fault,
)
from pipeline.stages.audit.config import ExpectSection

_EXPECTATIONS = ("required", "optional", "forbidden")


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line; end with exit code 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline audit", description="Exit code: 0 go, 1 no-go, 2 wrong usage or input."
    )
    parser.add_argument("--target", required=True, help="conf/target/<name>.yaml, or the path of a fingerprint.json")
    parser.add_argument(
        "--tokens",
        required=True,
        type=Path,
        help="tokens.parquet, or Parquet or JSONL with output_ids and, where known, input_ids",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for summary.json, summary.md, findings.parquet, report.html, accepted.parquet and sketch.parquet",
    )
    parser.add_argument("--explain", metavar="ID", help="print everything that is known of one row, and write nothing")
    parser.add_argument("--prompts", type=Path, help="prompts.jsonl: adds what was asked and the tools on offer")
    parser.add_argument(
        "--responses", type=Path, help="responses.jsonl: adds usage, cost, model and provider as received"
    )
    parser.add_argument("--heldout", type=Path, help="JSONL of evaluation prompts that must not be trained on")
    parser.add_argument(
        "--against",
        type=Path,
        action="append",
        default=[],
        help="another dataset's tokens, to find duplicates across both; may be repeated",
    )
    parser.add_argument(
        "--endpoints", type=Path, help="generate.json of a build: adds the endpoints' prices, names and number formats"
    )
    parser.add_argument("--timings", type=Path, help="timings.jsonl of a build: adds latencies to the report")
    parser.add_argument(
        "--workers", type=int, help="processes; the result does not depend on it (default: by the file's size)"
    )
    parser.add_argument(
        "--config", default="default", help="conf/audit/<name>.yaml, or a path ending in .yaml (default: default)"
    )
    parser.add_argument(
        "--reasoning",
        choices=_EXPECTATIONS,
        default="optional",
        help="what the dataset expects of every answer (default: optional)",
    )
    parser.add_argument(
        "--tool-calls",
        choices=_EXPECTATIONS,
        default="optional",
        help="what the dataset expects of every answer (default: optional)",
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        help="a provider that may answer; may be repeated; without it any provider may",
    )
    parser.add_argument("--deny", action="append", default=[], help="a provider that may not answer; may be repeated")
    options = parser.parse_args(argv)
    if (options.out is None) == (options.explain is None):
        parser.error("give --out DIR for an audit, or --explain ID for one row")
    return options


def main(argv: list[str]) -> int:
    """Audit a file; return 0 for go and 1 for no-go.

    Raises:
        AerieError: wrong usage or input.

    """
    options = arguments(argv)
    expect = ExpectSection(reasoning=options.reasoning, tool_calls=options.tool_calls)
    rules = AuditRules(load_section(options.config), expect, tuple(options.allow), tuple(options.deny))
    files = AuditFiles(
        options.tokens,
        options.prompts,
        options.responses,
        options.heldout,
        options.endpoints,
        options.timings,
        tuple(options.against),
    )
    if options.out is not None:
        refuse_to_overwrite_inputs(files, options.out)
    audit = open_file_audit(options.target, files, rules)
    if options.responses is not None and (warning := response_lines_fault(options.responses)):
        print(warning, file=sys.stderr)
    if options.explain is not None:
        print(audit.explain(options.explain))
        return 0
    summary = audit.write(options.out, options.workers)
    gate = summary["gate"]
    report = options.out / "report.html"
    print(f"{gate['verdict']}: {summary['accepted']} of {summary['rows']} rows accepted; report: {report}")
    for reason in gate["reasons"]:
        print(f"  {reason}", file=sys.stderr)
    return 0 if gate["verdict"] == "go" else 1
