"""`python -m pipeline audit --target NAME --tokens FILE --out DIR`: a verdict on data that need not come from a build."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.files.atomic import write_text
from pipeline.core.files.compression import opener_of
from pipeline.core.files.contents import read_bytes
from pipeline.core.files.jsonl import open_plain, read_lines
from pipeline.core.files.overwrite_check import refuse_overwriting
from pipeline.core.sections import mistake
from pipeline.project.report.markdown import markdown
from pipeline.project.targets import open_target
from pipeline.stages.audit.config import AuditSection, ExpectSection
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.inputs.context import Context, make_context
from pipeline.stages.audit.inputs.endpoints import read_endpoints
from pipeline.stages.audit.inputs.foreign import open_tokens
from pipeline.stages.audit.inputs.heldout import read_heldout
from pipeline.stages.audit.inputs.latency import read_latencies
from pipeline.stages.audit.inputs.source import Source
from pipeline.stages.audit.outputs import Outputs, write_audit
from pipeline.stages.audit.page.explain import explained
from pipeline.stages.audit.workers import suitable

CONF = Path("conf/audit")
WORDS = ("required", "optional", "forbidden")


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line."""
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
    parser.add_argument("--explain", metavar="ID", help="print everything known of one row, and write nothing")
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
        choices=WORDS,
        default="optional",
        help="what the dataset expects of every answer (default: optional)",
    )
    parser.add_argument(
        "--tool-calls",
        choices=WORDS,
        default="optional",
        help="what the dataset expects of every answer (default: optional)",
    )
    parser.add_argument(
        "--allow", action="append", default=[], help="a provider that may answer; may be repeated; none allows any"
    )
    parser.add_argument("--deny", action="append", default=[], help="a provider that may not answer; may be repeated")
    options = parser.parse_args(argv)
    if (options.out is None) == (options.explain is None):
        parser.error("give --out DIR for an audit, or --explain ID for one row")
    return options


def load_section(name: str) -> AuditSection:
    """Read and check thresholds.

    Raises:
        ConfigError: no such file, not YAML, or not valid; every mistake is named.

    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else CONF / f"{name}.yaml"
    if not path.is_file():
        known = sorted(found.stem for found in CONF.glob("*.yaml"))
        raise ConfigError(f"{path}: no such file; {CONF}/ has {known}")
    try:
        return AuditSection.model_validate(YAML(typ="safe", pure=True).load(read_bytes(path).decode()))
    except ValidationError as error:
        listed = "\n  ".join(map(mistake, error.errors()))
        raise ConfigError(f"{path}: not a valid audit config:\n  {listed}") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error


def others(paths: list[Path], context: Context) -> Iterator[tuple[str, Batch]]:
    """Batches of other datasets, each with its name: the file's, or its folder's where that is a build's."""
    for path in paths:
        name = (
            path.parent.name if path.name in ("tokens.parquet", "accepted.parquet") and path.parent.name else path.name
        )
        for batch in Source(open_tokens(path)).batches(context):
            yield name, batch


def _look_at(responses: Path) -> None:
    """Say how many response lines are not JSON: `reconstruct` makes rejected rows of them, and an audit goes on without them.

    Raises:
        InputError: the file is missing or packed, or no line is JSON.

    """
    if opener_of(responses) is not open_plain:
        raise InputError(f"{responses}: packed; --responses is read by position, so unpack it first")
    lines, bad = 0, []
    for number, line in read_lines(responses):
        lines += 1
        try:
            orjson.loads(line)
        except orjson.JSONDecodeError as error:
            bad.append(f"line {number}: {error}")
    if bad and len(bad) == lines:
        raise InputError(f"{responses}: no line is JSON; {bad[0]}")
    if bad:
        print(
            f"{responses}: {len(bad)} of {lines} lines are not JSON, so their rows are audited without them; {bad[0]}",
            file=sys.stderr,
        )


def main(argv: list[str]) -> int:
    """Audit a file; 0 for go, 1 for no-go.

    Raises:
        AerieError: wrong usage or input.

    """
    options = arguments(argv)
    section = load_section(options.config)
    if options.out is not None:
        read = [
            options.tokens,
            options.prompts,
            options.responses,
            options.heldout,
            options.endpoints,
            options.timings,
            *options.against,
        ]
        refuse_overwriting(read, [*Outputs.in_folder(options.out).paths(), options.out / "summary.md"])
    record, tokenizer = open_target(options.target)
    heldout = read_heldout(options.heldout, tokenizer, section.contamination.n) if options.heldout else None
    expect = ExpectSection(reasoning=options.reasoning, tool_calls=options.tool_calls)
    endpoints = read_endpoints(options.endpoints) if options.endpoints else None
    latencies = read_latencies(options.timings) if options.timings else None
    context = make_context(record, tokenizer, expect, options.allow, options.deny, heldout, endpoints)
    if options.responses:
        _look_at(options.responses)
    source = Source(open_tokens(options.tokens), options.prompts, options.responses, str(options.tokens), anyone=True)
    if options.explain is not None:
        print(explained(source, context, section, options.explain))
        return 0
    out = options.out
    outputs = Outputs.in_folder(out)
    workers = options.workers or suitable(options.tokens)
    summary = write_audit(
        f"Audit of {options.tokens.name}",
        source,
        context,
        section,
        outputs,
        others(options.against, context),
        workers,
        latencies=latencies,
    )
    write_text(out / "summary.md", markdown({options.tokens.name: summary}))
    gate = summary["gate"]
    print(f"{gate['verdict']}: {summary['accepted']} of {summary['rows']} rows accepted; report: {outputs.report}")
    for reason in gate["reasons"]:
        print(f"  {reason}", file=sys.stderr)
    return 0 if gate["verdict"] == "go" else 1
