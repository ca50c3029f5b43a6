"""`python -m pipeline audit --target NAME --tokens FILE --out DIR`: a verdict on data that need not come from a build."""

import argparse
import sys
from pathlib import Path

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.artifacts import read_bytes
from pipeline.audit.config import AuditSection
from pipeline.audit.context import make_context
from pipeline.audit.outputs import Outputs, write_audit
from pipeline.audit.source import Source, parquet
from pipeline.errors import ConfigError
from pipeline.targets import open_target

CONF = Path("conf/audit")


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline audit", description="Exit code: 0 go, 1 no-go, 2 wrong usage or input.")
    parser.add_argument("--target", required=True, help="conf/target/<name>.yaml, or the path of a fingerprint.json")
    parser.add_argument("--tokens", required=True, type=Path, help="tokens.parquet, or Parquet or JSONL with input_ids and output_ids")
    parser.add_argument("--out", required=True, type=Path, help="folder for summary.json, findings.parquet, report.html and accepted.parquet")
    parser.add_argument("--prompts", type=Path, help="prompts.jsonl: adds what was asked and the tools on offer")
    parser.add_argument("--responses", type=Path, help="responses.jsonl: adds usage, cost, model and provider as received")
    parser.add_argument("--config", default="default", help="conf/audit/<name>.yaml, or a path ending in .yaml (default: default)")
    return parser.parse_args(argv)


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
        listed = "\n  ".join(f"{'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}; found {e['input']!r}" for e in error.errors())
        raise ConfigError(f"{path}: not a valid audit config:\n  {listed}") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error


def main(argv: list[str]) -> int:
    """Audit a file; 0 for go, 1 for no-go.

    Raises:
        AerieError: wrong usage or input.

    """
    options = arguments(argv)
    section = load_section(options.config)
    record, tokenizer = open_target(options.target)
    outputs = Outputs(options.out / "accepted.parquet", options.out / "findings.parquet", options.out / "report.html", options.out / "summary.json")
    source = Source(parquet(options.tokens), options.prompts, options.responses)
    summary = write_audit(f"Audit of {options.tokens.name}", source, make_context(record, tokenizer), section, outputs)
    gate = summary["gate"]
    print(f"{gate['verdict']}: {summary['accepted']} of {summary['rows']} rows accepted; report: {outputs.report}")
    for reason in gate["reasons"]:
        print(f"  {reason}", file=sys.stderr)
    return 0 if gate["verdict"] == "go" else 1
