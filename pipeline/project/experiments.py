"""The jobs of a sweep as DVC experiments: run one in its own copy, find it again, read its figures, show all."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
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
"""Paths that an experiment consists of; each copy has them as HEAD has."""

COPIES = Path(".dvc/tmp/exps")
_ABANDONED_SECONDS = 600
_DVC = (
    "import sys; from pipeline.core.process.parent_death import follow_parent; follow_parent(int(sys.argv.pop(1))); "
    "from dvc.cli import main; sys.exit(main(sys.argv[1:]))"
)
"""DVC that ends with the process whose id comes first: else the trainings of a killed sweep would continue."""

_RAN = re.compile(r"^Running stage '([^']+)'", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SweepJob:
    """One job of a sweep."""

    name: str
    """Name of the experiment, for `dvc exp show`, `dvc exp apply`, `dvc exp push`."""
    overrides: list[str]
    status: str
    """done: it ran now; kept: an earlier sweep ran it; failed."""
    seconds: float
    stages: list[str] = field(default_factory=list)
    """Stages that ran for it; the others came from the cache."""
    figures: dict[str, float | None] = field(default_factory=dict)
    """acceptance_length, accepted (rows), cost_usd (of the answers in this version of the data, whoever paid)."""
    reason: str | None = None
    """The reason of a failure, in the last words of the stage or of DVC."""

    def to_dict(self) -> dict[str, Any]:
        """Return the job as a JSON object."""
        return asdict(self)


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, errors="surrogateescape", check=False
        )
    except OSError as error:
        raise ConfigError(f"git cannot be started: {error}; the jobs of a sweep are commits, so install git") from error


def head() -> str:
    """Return the hash of the commit that the sweep starts from.

    Raises:
        ConfigError: this folder has no commit.

    """
    done = _git("rev-parse", "--verify", "--quiet", "HEAD")
    if done.returncode:
        raise ConfigError(
            "a sweep starts from a commit, and this folder has none: "
            f"`git init`, `git add`, `git commit` first{_git_message(done)}"
        )
    return done.stdout.strip()


def _git_message(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error that git printed, in brackets; nothing if it printed none."""
    return f" (git: {done.stderr.strip()})" if done.stderr.strip() else ""


def refuse_uncommitted() -> None:
    """Refuse a work tree with uncommitted files: a job runs in a copy of HEAD, which would not have them.

    Raises:
        ConfigError: with the path of each untracked or changed file; or git fails.

    """
    sources = [name for name in SOURCES if Path(name).exists()]
    done = _git("status", "--porcelain", "--untracked-files=all", "--", *sources)
    if done.returncode:
        raise ConfigError(f"git cannot list the uncommitted files here{_git_message(done)}")
    lines = done.stdout.splitlines()
    untracked = [line[3:] for line in lines if line.startswith("??")]
    changed = [line[3:] for line in lines if not line.startswith("??")]
    if untracked:
        raise ConfigError(
            "git add these first, and commit: each job runs in a copy that has only what git knows:\n  "
            + "\n  ".join(untracked)
        )
    if changed:
        raise ConfigError(
            "commit these first (`git commit -a`): a job is HEAD and its overrides, nothing else:\n  "
            + "\n  ".join(changed)
        )


def reference(commit: str, name: str) -> str:
    """Return the git reference of an experiment that started from a commit."""
    return f"refs/exps/{commit[:2]}/{commit[2:]}/{name}"


def exists(commit: str, name: str) -> bool:
    """Return whether an experiment of this name started from this commit, and succeeded."""
    return _git("rev-parse", "--verify", "--quiet", reference(commit, name)).returncode == 0


def run(name: str, setting: str, log: Path) -> tuple[str, str | None, list[str]]:
    """Run an experiment in its own copy; return its status, the reason of a failure, and the stages that ran."""
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
    output = done.stdout + done.stderr
    log_note = f"all of it: {log}"
    try:
        write_text(log, output)
    except DiskError as error:  # the experiment counts, not its log
        log_note = str(error)
    stages = list(dict.fromkeys(_RAN.findall(output)))
    if done.returncode == 0:
        return "done", None, stages
    return "failed", f"{last_words(output)} ({log_note})", stages


def last_words(output: str) -> str:
    """Return the error in a log: the lines that open with `error`, each with the indented lines after it.

    The stage's own errors come before those of DVC. A log without such lines gives its last line.
    """
    lines = [line for line in output.splitlines() if line.strip()]
    errors, in_error = list[str](), False
    for line in lines:
        if in_error and line[0] == " ":
            errors[-1] += f" {line.strip()}"
        elif in_error := line.strip().lower().startswith("error"):
            errors.append(line.strip())
    return " | ".join(dict.fromkeys(errors[:3])) or (lines[-1].strip() if lines else "it printed nothing")


def _document(revision: str, path: str) -> Any:
    done = _git("show", f"{revision}:./{path}")
    try:
        return orjson.loads(done.stdout) if done.returncode == 0 else {}
    except orjson.JSONDecodeError:
        return {}


def figures(commit: str, name: str) -> dict[str, float | None]:
    """Return the figures by which jobs are compared, from the files of an experiment that git holds."""
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
    """Remove the copies of killed experiments: no process works in them, and they are ten minutes old; return them."""
    working_folders = []
    for process in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):  # the process ended, or belongs to another user
                working_folders.append((process / "cwd").readlink())
    removed = []
    for folder in sorted(COPIES.glob("**/tmp*")) if working_folders else []:
        copy = folder.resolve()
        in_use = any(place == copy or copy in place.parents for place in working_folders)
        if in_use or not (folder / ".dvc").is_dir():
            continue
        if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def remove_folder(folder: Path) -> None:
    """Remove a sweep's folder, and its parent if that is empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def read_jobs(folder: Path) -> list[SweepJob]:
    """Read the records of a sweep's jobs: best acceptance length first, failures last."""
    jobs = [SweepJob(**read_json(path)) for path in sorted(folder.glob("sweep-*.json"))]
    return sorted(
        jobs, key=lambda job: (job.status == "failed", -(job.figures.get("acceptance_length") or 0), job.overrides)
    )


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def show(jobs: list[SweepJob], record: Path) -> None:
    """Print the table, the path of the records and the next commands to standard error."""
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
