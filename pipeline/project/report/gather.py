"""What a build has made so far, read from its small files; whatever is missing is None, and said so."""

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.errors import AerieError
from pipeline.core.files.contents import read_bytes
from pipeline.core.files.json_file import read_json
from pipeline.graph import STAGES, Stage


@dataclass(frozen=True)
class Dataset:
    """One dataset's small files."""

    name: str
    audit: dict[str, Any] | None
    generate: dict[str, Any] | None
    calibration: dict[str, Any] | None
    made: dict[str, bool]
    """Stage to whether everything that it writes is there."""
    report: bool
    """Whether there is a report to link."""
    accepted: Path
    sketch: Path
    """What rows are compared by; either file may be missing."""


@dataclass(frozen=True)
class Build:
    """A build's small files."""

    config: dict[str, Any]
    datasets: list[Dataset]
    made: dict[str, bool]
    """Stages of the whole build."""
    evaluation: dict[str, Any] | None
    log: list[dict[str, float | None]] = field(default_factory=list)
    """Rows of the training log."""


def small(path: Path) -> dict[str, Any] | None:
    """Document in a JSON file, or None when there is none that can be read."""
    try:
        found = read_json(path)
    except AerieError:
        return None
    return found if isinstance(found, dict) else None


def audit_summary(path: Path) -> dict[str, Any] | None:
    """Summary of an audit, or None when there is none of this version."""
    found = small(path)
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
    return found if found is not None and found.get("version") == 1 and needed <= set(found) else None


def number(text: str | None) -> float | None:
    """Cell of a log as a number, or None."""
    try:
        return float(text) if text else None
    except ValueError:
        return None


def training_log(path: Path) -> list[dict[str, float | None]]:
    """Rows of the training log; empty when there is none."""
    try:
        lines = read_bytes(path).decode("utf-8", "replace").split("\n")
    except AerieError:
        return []
    return [{key: number(value) for key, value in row.items() if key} for row in csv.DictReader(lines)]


def is_made(stage: Stage, root: Path, dataset: str = "") -> bool:
    """Whether all that a stage writes is there."""
    return all((root / template.format(d=dataset)).exists() for template in stage.writes.values())


def gather(root: Path) -> Build | None:
    """Read a build, or None when nothing was composed there yet."""
    build = root / "build"
    config = small(build / "config.json")
    if config is None:
        return None
    datasets = []
    for name in config.get("names", []):
        folder = build / name
        datasets.append(
            Dataset(
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
