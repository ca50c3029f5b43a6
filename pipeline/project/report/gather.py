"""The small files of a build, as far as they exist; None for a missing one."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import AerieError
from pipeline.core.files.contents import read_bytes
from pipeline.core.files.json_file import read_json
from pipeline.graph import STAGES, Stage


@dataclass(frozen=True)
class BuiltDataset:
    """The small files of one dataset."""

    name: str
    audit: dict[str, Any] | None
    generate: dict[str, Any] | None
    calibration: dict[str, Any] | None
    made: dict[str, bool]
    """Maps each stage to whether all its files exist."""
    report: bool
    """True where the page of the audit exists."""
    accepted: Path
    sketch: Path
    """By these two files rows are compared across datasets; either may be missing."""


@dataclass(frozen=True)
class Build:
    """The small files of a build."""

    config: dict[str, Any]
    datasets: list[BuiltDataset]
    made: dict[str, bool]
    """Maps each stage of the whole build to whether all its files exist."""
    evaluation: dict[str, Any] | None
    log: list[dict[str, float | None]]
    """Rows of the training log."""


def small(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None where it is missing or damaged."""
    try:
        document = read_json(path)
    except AerieError:
        return None
    return document if isinstance(document, dict) else None


def audit_summary(path: Path) -> dict[str, Any] | None:
    """Return the summary of an audit, or None where it is missing, damaged or of another version."""
    summary = small(path)
    needed = {
        "rows",
        "accepted",
        "accepted_tokens",
        "rows_with_error",
        "billing",
        "evidence",
        "left_out",
        "checks",
        "providers",
        "cost_usd",
        "gate",
    }
    return summary if summary is not None and summary.get("version") == 1 and needed <= set(summary) else None


def number(text: str | None) -> float | None:
    """Return a cell of a log as a number, or None where it is empty or not a number."""
    try:
        return float(text) if text else None
    except ValueError:
        return None


def training_log(path: Path) -> list[dict[str, float | None]]:
    """Return the rows of the training log; none where it is missing."""
    try:
        lines = read_bytes(path).decode("utf-8", "replace").split("\n")
    except AerieError:
        return []
    return [{key: number(value) for key, value in row.items() if key} for row in csv.DictReader(lines)]


def is_made(stage: Stage, root: Path, dataset: str = "") -> bool:
    """Return whether all files of a stage exist."""
    return all((root / template.format(d=dataset)).exists() for template in stage.writes.values())


def gather(root: Path) -> Build | None:
    """Read a build; return None where build/config.json is missing or damaged."""
    build = root / "build"
    config = small(build / "config.json")
    if config is None:
        return None
    datasets = []
    for name in config.get("names", []):
        folder = build / name
        datasets.append(
            BuiltDataset(
                name=name,
                audit=audit_summary(folder / "audit" / "summary.json"),
                generate=small(folder / "generate.json"),
                calibration=small(folder / "calibration.json"),
                made={stage.name: is_made(stage, root, name) for stage in STAGES if stage.per_dataset},
                report=(folder / "audit" / "report.html").is_file(),
                accepted=folder / "accepted.parquet",
                sketch=folder / "audit" / "sketch.parquet",
            )
        )
    made = {stage.name: is_made(stage, root) for stage in STAGES if not stage.per_dataset}
    return Build(
        config, datasets, made, small(build / "drafter" / "eval.json"), training_log(build / "drafter" / "log.csv")
    )
