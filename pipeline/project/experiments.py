"""A sweep's jobs as DVC experiments: run one in its own copy, find one again, read its figures, show them all. Hydra-free."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.core.errors import ConfigError, DiskError
from pipeline.core.files.atomic import write_text
from pipeline.core.files.json_file import read_json

SOURCES = ("conf", "data", "pipeline", "params.yaml", "dvc.yaml", "dvc.lock", "requirements.lock", "build")
"""What an experiment is made of; each copy has it as HEAD has."""

COPIES = Path(".dvc/tmp/exps")
_ABANDONED_SECONDS = 600
_DVC = "import sys; from pipeline.core.process.parent_death import follow_parent; follow_parent(int(sys.argv.pop(1))); from dvc.cli import main; sys.exit(main(sys.argv[1:]))"
"""DVC that ends with the process named first: one that a killed sweep left behind would train on, and hold the machine."""

_RAN = re.compile(r"^Running stage '([^']+)'", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a sweep."""

    name: str
    """Of the experiment, for `dvc exp show`, `dvc exp apply`, `dvc exp push`."""
    overrides: list[str]
    status: str
    """done: ran now; kept: an earlier sweep had run it; failed."""
    seconds: float
    stages: list[str] = field(default_factory=list)
    """Stages that ran for it; the others came from the cache."""
    figures: dict[str, float | None] = field(default_factory=dict)
    """acceptance_length, accepted (rows), cost_usd (of the answers in this version of the data, whoever paid)."""
    reason: str | None = None
    """Why it failed, by DVC's or the stage's own last words."""


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, errors="surrogateescape", check=False
        )
    except OSError as error:
        raise ConfigError(f"git cannot be started: {error}; a sweep's jobs are commits, so install it") from error


def head() -> str:
    """Hash of the commit that the sweep starts from.

    Raises:
        ConfigError: there is none.

    """
    done = _git("rev-parse", "--verify", "--quiet", "HEAD")
    if done.returncode:
        raise ConfigError(
            f"a sweep starts from a commit, and here is none: `git init`, `git add`, `git commit` first{_said(done)}"
        )
    return done.stdout.strip()


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """What git printed, where it printed something."""
    return f" (git: {done.stderr.strip()})" if done.stderr.strip() else ""


def refuse_uncommitted() -> None:
    """Each job runs in a copy of HEAD, so what is not committed would be missing from it, or from the record of what ran.

    Raises:
        ConfigError: files that git does not know, or changes that are not committed, each is named; or git cannot say.

    """
    there = [name for name in SOURCES if Path(name).exists()]
    done = _git("status", "--porcelain", "--untracked-files=all", "--", *there)
    if done.returncode:
        raise ConfigError(f"git cannot say what is not committed here{_said(done)}")
    lines = done.stdout.splitlines()
    unknown = [line[3:] for line in lines if line.startswith("??")]
    changed = [line[3:] for line in lines if not line.startswith("??")]
    if unknown:
        raise ConfigError(
            "git add these first, and commit: each job runs in a copy that has only what git knows:\n  "
            + "\n  ".join(unknown)
        )
    if changed:
        raise ConfigError(
            "commit these first (`git commit -a`): a job is HEAD and its overrides, nothing else:\n  "
            + "\n  ".join(changed)
        )


def reference(commit: str, name: str) -> str:
    """Where DVC keeps an experiment that started from a commit."""
    return f"refs/exps/{commit[:2]}/{commit[2:]}/{name}"


def exists(commit: str, name: str) -> bool:
    """Whether an experiment of this name started from this commit, and ended well."""
    return _git("rev-parse", "--verify", "--quiet", reference(commit, name)).returncode == 0


def run(name: str, setting: str, log: Path) -> tuple[str, str | None, list[str]]:
    """Run an experiment in its own copy; return its status, why it failed, and the stages that ran."""
    command = [
        sys.executable,
        "-c",
        _DVC,
        str(os.getpid()),
        "--wait-for-lock",
        "exp",
        "run",
        "--temp",
        "--name",
        name,
        "--set-param",
        setting,
    ]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment
    )
    said = done.stdout + done.stderr
    where = f"all of it: {log}"
    try:
        write_text(log, said)
    except DiskError as error:  # the experiment is what counts
        where = str(error)
    stages = list(dict.fromkeys(_RAN.findall(said)))
    if done.returncode == 0:
        return "done", None, stages
    return "failed", f"{last_words(said)} ({where})", stages


def last_words(said: str) -> str:
    """Lines of a log in which something is called an error, with the indented ones that belong to them, the stage's own before DVC's; else the last line."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors, goes_on = list[str](), False
    for line in lines:
        if goes_on and line[0] == " ":
            errors[-1] += f" {line.strip()}"
        elif goes_on := line.strip().lower().startswith("error"):
            errors.append(line.strip())
    return " | ".join(dict.fromkeys(errors[:3])) or (lines[-1].strip() if lines else "it said nothing")


def _document(revision: str, path: str) -> Any:
    done = _git("show", f"{revision}:./{path}")
    try:
        return orjson.loads(done.stdout) if done.returncode == 0 else {}
    except orjson.JSONDecodeError:
        return {}


def figures(commit: str, name: str) -> dict[str, float | None]:
    """Give the figures by which jobs are compared, from what git holds of an experiment."""
    revision = reference(commit, name)
    names = _document(revision, "build/config.json").get("names", [])
    costs = [_document(revision, f"build/{dataset}/generate.json").get("cost_usd") for dataset in names]
    accepted = [_document(revision, f"build/{dataset}/audit/summary.json").get("accepted") for dataset in names]
    evaluation = _document(revision, "build/drafter/eval.json")
    return {
        "acceptance_length": evaluation.get("acceptance_length"),
        "accepted": None if None in accepted else sum(accepted),
        "cost_usd": None if None in costs else round(sum(costs), 6),
    }


def remove_abandoned() -> list[Path]:
    """Remove copies of experiments that were killed: no live process works in them, and nothing happened there for a while."""
    inside = []
    for process in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if process.name.isdecimal():
            with contextlib.suppress(
                OSError
            ):  # it ended meanwhile, or belongs to another user; a glob would fail there now and then
                inside.append((process / "cwd").readlink())
    gone = []
    for folder in sorted(COPIES.glob("**/tmp*")) if inside else []:
        found = folder.resolve()
        if not (folder / ".dvc").is_dir() or any(place == found or found in place.parents for place in inside):
            continue
        if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
            gone.append(folder)
    return gone


def remove_folder(folder: Path) -> None:
    """Remove a sweep's folder, and the one above it when nothing else is in that."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def read_jobs(folder: Path) -> list[Job]:
    """Records that the jobs of a sweep left, best acceptance length first, failures last."""
    jobs = [Job(**read_json(path)) for path in sorted(folder.glob("sweep-*.json"))]
    return sorted(
        jobs, key=lambda job: (job.status == "failed", -(job.figures.get("acceptance_length") or 0), job.overrides)
    )


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def show(jobs: list[Job], record: Path) -> None:
    """Print the table, where the records lie, and what to do next, to standard error: standard output may be read by a program."""
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 160)
    common = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
    table = Table(
        "experiment",
        "overrides",
        "status",
        "acceptance length",
        "accepted rows",
        "data, $",
        "seconds",
        "stages that ran",
    )
    for job in jobs:
        cells = [_cell(job.figures.get(name)) for name in ("acceptance_length", "accepted", "cost_usd")]
        own = " ".join(override for override in job.overrides if override not in common)
        table.add_row(job.name, Text(own), job.status, *cells, f"{job.seconds:.1f}", ", ".join(job.stages) or "none")
    console.print(table)
    for job in jobs:
        if job.reason:
            console.print(f"{job.name} failed: {job.reason}", markup=False, soft_wrap=True)
    console.print(
        f"records: {record}; `dvc exp show` shows them with all figures, `dvc exp apply NAME` takes one",
        markup=False,
        soft_wrap=True,
    )
