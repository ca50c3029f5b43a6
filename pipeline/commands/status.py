"""`python -m pipeline status`: what the build holds, in a few lines, from the small files that git keeps."""

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.core.files.json_file import read_json
from pipeline.core.terminal import plain_table

BUILD = Path("build")
EVIDENCE = ("ids", "logprobs", "count", "text")


def _read(path: Path) -> Any:
    """Document in a file, empty where there is none."""
    return read_json(path) if path.exists() else {}


def dataset_line(name: str) -> list[str]:
    """One dataset's cells: rows, accepted, exactness, verdict; a dash where a stage has not run."""
    audit, calibration = (_read(BUILD / name / file) for file in ("audit/summary.json", "calibration.json"))
    evidence = calibration.get("by_evidence", {})
    exact = " ".join(f"{kind} {found['exact']}/{found['rows']}" for kind in EVIDENCE if (found := evidence.get(kind)))
    verdict = audit.get("gate", {}).get("verdict", "-")
    return [name, str(audit.get("rows", "-")), str(audit.get("accepted", "-")), exact or "-", verdict]


def show_speed(names: list[str], console: Console) -> None:
    """Print how fast each provider answered, where the build has its timings."""
    table = plain_table("answers", ["dataset", "provider"], ["answers", "median s", "95 % within s", "tokens/s"])
    for name in names:
        found = _read(BUILD / name / "timings.json")
        rate = found.get("completion_tokens_per_second")
        for number, (provider, seen) in enumerate(found.get("by_provider", {}).items()):
            speed = f"{rate:,.0f}" if rate is not None and number == 0 else ""
            table.add_row(
                name,
                Text(provider),
                str(seen["answers"]),
                f"{seen['p50_seconds']:.2f}",
                f"{seen['p95_seconds']:.2f}",
                speed,
            )
    if table.row_count:
        console.print(table)


def main(argv: list[str]) -> None:
    """Print the state of the build.

    Raises:
        ArtifactError: nothing was composed yet, or a file is damaged.

    """
    argparse.ArgumentParser(prog="python -m pipeline status", description=__doc__).parse_args(argv)
    config = read_json(BUILD / "config.json")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    table = Table(
        "dataset",
        "rows",
        "accepted",
        "equal to the true ids, by evidence",
        "verdict",
        title=f"build of {config['target']['name']}",
    )
    for name in config["names"]:
        table.add_row(*dataset_line(name))
    console.print(table)
    show_speed(config["names"], console)
    result = _read(BUILD / "drafter/eval.json")
    if result:
        console.print(
            f"drafter: acceptance length {result['acceptance_length']:.2f} with {result['draft_tokens']} draft tokens on {result['prompts']} held-out prompts"
        )
    else:
        console.print("drafter: not evaluated yet; run `dvc repro`")
