"""`python -m pipeline.sweep -m train.lr=1e-4,3e-4 audit=default,strict`: a Hydra multirun in which every job is a DVC experiment.

Hydra's grammar, sweepers and launchers work as ever. Each job runs `dvc exp run --temp` in its own copy of HEAD, with the
shared cache and ledger: what a job does not change is not built again, and no prompt is paid for twice. A job's name is a
hash of the commit and its overrides, so an interrupted sweep, started again, runs only what is missing.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.core.parse_errors import reporting_import_errors

with reporting_import_errors(__name__):
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    from pipeline.core.errors import BusyError, ConfigError, DiskError
    from pipeline.core.files.json_file import to_json, write_json
    from pipeline.core.process.exit_codes import guarded
    from pipeline.core.process.parent_death import follow_parent
    from pipeline.project import experiments
    from pipeline.project.compose import Params, check_grammar, check_jobs, jobs_of, read_params, refusal
    from pipeline.project.experiments import Job
    from pipeline.project.settings import PARAMS
    from pipeline.project.versions.lockfile import LOCK, read_lock

FOLDER = Path("multirun")
_USAGE = "usage: python -m pipeline.sweep -m KEY=VALUE,VALUE ... [--json] (Hydra's multirun, with its whole grammar)"
_FLAGS = frozenset({"-m", "--multirun"})
_FIXED = frozenset({"hydra.job.chdir", "hydra.mode", "hydra.run.dir", "hydra.sweep.dir"})
"""Settings of Hydra that a sweep relies on: where it leaves its records, and where it runs."""
_HYDRA_REFUSES = (1, 2)
"""Codes with which Hydra ends the process after it has said why; 143 is ours, after SIGTERM."""
_PROCESS = "AERIE_SWEEP_PROCESS"
"""Environment variable: the process that runs the sweep. A launcher may run jobs in others, which are to end with it."""
_DATASET = re.compile(r"\+dataset@datasets\.")


def key_of(override: str) -> str:
    """What an override sets: `train.lr` of `+train.lr=1`."""
    return override.lstrip("+~").partition("=")[0]


def quoted(override: str) -> str:
    """Write an override as one string of the list that `dvc exp run -S overrides=[...]` takes.

    Raises:
        ConfigError: it holds an interpolation, which Hydra would resolve in this list and not in conf/.

    """
    if "${" in override:
        raise ConfigError(f"override {override!r}: interpolations belong into conf/, a sweep cannot pass them on")
    escaped = re.sub(r'(\\+)(?="|$)', lambda found: found[1] * 2, override)
    return '"' + escaped.replace('"', '\\"') + '"'


def hydra_arguments(arguments: list[str], params: Params, folder: Path) -> list[str]:
    """Arguments for Hydra: the datasets and overrides of params.yaml, then what the user gave.

    An override of params.yaml gives way to one of the user's for the same key. `+` keeps the order: Hydra wants all
    overrides in one run of arguments.
    """
    mine = {key_of(argument) for argument in arguments if "=" in argument and not argument.startswith("-")}
    base = [f"+dataset@datasets.{name}={name}" for name in sorted(params.datasets)]
    base += [override for override in params.overrides if key_of(override) not in mine]
    quiet = [
        f"hydra.sweep.dir={folder}",
        "hydra.sweep.subdir=${hydra.job.num}",
        "hydra.output_subdir=null",
        "hydra/job_logging=disabled",
    ]
    quiet = [argument for argument in quiet if key_of(argument) not in mine]
    at = next(
        (n for n, argument in enumerate(arguments) if "=" in argument and not argument.startswith("-")), len(arguments)
    )
    return [*arguments[:at], *base, *quiet, *arguments[at:]]


def run_job(overrides: list[str], folder: Path) -> Job:
    """Run one job as an experiment, unless it is there already; leave its record in ``folder``.

    Raises:
        ConfigError: an override that cannot be passed on.

    """
    values = ",".join(map(quoted, overrides))
    commit = experiments.head()
    name = "sweep-" + hashlib.sha256("\0".join([commit, *overrides]).encode()).hexdigest()[:10]
    record = folder / f"{name}.json"
    begin = time.monotonic()
    status, reason, stages = "kept", None, list[str]()
    if not experiments.exists(commit, name):
        print(f"{name}: {' '.join(overrides)}", file=sys.stderr, flush=True)
        status, reason, stages = experiments.run(name, f"overrides=[{values}]", folder / f"{name}.log")
        if status == "failed" and experiments.exists(commit, name):
            status, reason = "kept", None  # another sweep ran the same job meanwhile, and was done first
    figures = experiments.figures(commit, name) if status != "failed" else {}
    job = Job(name, overrides, status, round(time.monotonic() - begin, 1), stages, figures, reason)
    if status != "kept" or not record.exists():  # a sweeper that asks for one job twice has run it once
        write_json(record, to_record(job))
    return job


def to_record(job: Job) -> dict[str, Any]:
    """One job as JSON."""
    return {name: getattr(job, name) for name in job.__dataclass_fields__}


@hydra.main(config_path="../conf", config_name="config", version_base="1.3")  # type: ignore[untyped-decorator]
def _multirun(config: DictConfig) -> float:
    """What Hydra calls for each job; composing the config is only its check here, the experiment composes its own.

    Returns the acceptance length, for sweepers that optimise, which is at least 1; 0 for a job that failed, since Optuna's sweeper stops at what is no number.
    """
    del config
    if os.environ.get(_PROCESS, str(os.getpid())) != str(os.getpid()):
        follow_parent()
    settings = HydraConfig.get()
    overrides = [override for override in settings.overrides.task if not _DATASET.match(override)]
    return run_job(list(overrides), Path(settings.sweep.dir)).figures.get("acceptance_length") or 0.0


def folder_of(arguments: list[str]) -> Path:
    """Where a sweep's records lie: the same for the same sweep from the same commit, so that it can be continued."""
    return FOLDER / hashlib.sha256("\0".join([experiments.head(), *arguments]).encode()).hexdigest()[:10]


def check_arguments(arguments: list[str]) -> None:
    """Refuse what is no multirun, or would take the records or the jobs elsewhere.

    Raises:
        ConfigError: the first such argument, and what is taken.

    """
    flags = [argument for argument in arguments if argument.startswith("-")]
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    if odd := sorted(set(flags) - _FLAGS):
        raise ConfigError(
            f"{odd[0]!r} is none of a sweep's flags: a job is HEAD and its overrides, nothing else; {_USAGE}"
        )
    if not flags or not any("=" in argument for argument in overrides):
        raise ConfigError(_USAGE)
    check_grammar(overrides)
    if fixed := [override for override in overrides if key_of(override) in _FIXED]:
        raise ConfigError(f"override {fixed[0]!r}: the sweep itself sets this; its records lie under {FOLDER}/")
    if named := [override for override in overrides if key_of(override) == "datasets" or _DATASET.match(override)]:
        raise ConfigError(
            f"override {named[0]!r}: which datasets are built stands in {PARAMS}, and is no override; commit it there"
        )


def check_values(arguments: list[str], params: Params) -> None:
    """Validate every job's config before the first one runs, and tell which will fail. Only of Hydra's own sweeper: what another one will ask for is not known yet.

    Raises:
        ConfigError: no job's config is valid.

    """
    overrides = [
        argument
        for argument in hydra_arguments(arguments, params, FOLDER)
        if not argument.startswith(("-", "+dataset@datasets."))
    ]
    if not any(key_of(override).startswith(("hydra/sweeper", "hydra.sweeper")) for override in overrides):
        jobs = jobs_of([override for override in overrides if not key_of(override).startswith(("hydra.", "hydra/"))])
        if said := check_jobs(params.datasets, jobs):
            print(f"{said}\nthe others run; stop with Ctrl-C to mend it first", file=sys.stderr)


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder alone, since a second run of the same sweep would start the table anew.

    Raises:
        BusyError: the same sweep runs already.
        DiskError: the folder cannot be made.

    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DiskError(f"{folder}: {error.strerror or error}; a sweep leaves its records there") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"{folder}: the same sweep is running already; wait for it, then the same command shows its table"
            ) from None
        yield
    finally:
        os.close(handle)


def sweep(arguments: list[str]) -> list[Job]:
    """Run all jobs, then show the table, also when interrupted.

    Raises:
        BusyError: the same sweep runs already.
        ConfigError: the arguments are no multirun, HEAD does not hold what is swept over, dvc.lock is broken, Hydra refuses an override, or no job's config is valid.

    """
    check_arguments(arguments)
    folder, params = folder_of(arguments), read_params()
    experiments.refuse_uncommitted()
    if read_lock() is None:
        print(
            f"there is no {LOCK}, so every job builds all of it; `dvc repro` and commit first to share what jobs have in common",
            file=sys.stderr,
        )
    for copy in experiments.remove_abandoned():
        print(f"removed {copy}: a killed experiment left it", file=sys.stderr)
    check_values(arguments, params)
    is_new = not folder.exists()
    with only_one(folder):
        return _run_all(arguments, params, folder, is_new=is_new)


def _run_all(arguments: list[str], params: Params, folder: Path, *, is_new: bool) -> list[Job]:
    for old in folder.glob("sweep-*.json"):
        old.unlink()
    os.environ[_PROCESS] = str(os.getpid())
    os.environ["HYDRA_FULL_ERROR"] = "1"  # or Hydra prints its errors by itself, with advice that leads nowhere here
    given = hydra_arguments(arguments, params, folder)
    sys.argv = [sys.argv[0], *given]
    try:
        with contextlib.redirect_stdout(
            sys.stderr
        ):  # Hydra tells its jobs on standard output, which a program may read
            _multirun()
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(refusal(error, given)) from error
    except SystemExit as error:
        if error.code in _HYDRA_REFUSES:
            raise ConfigError(
                f"Hydra refuses the sweep, see above; conf/ has the keys, {PARAMS} the datasets"
            ) from error
        if error.code:  # this process was told to end
            raise
    finally:
        if jobs := experiments.read_jobs(folder):
            experiments.show(jobs, folder / "sweep.json")  # first: it needs no room on the disk
            write_json(
                folder / "sweep.json",
                {"commit": experiments.head(), "arguments": arguments, "jobs": [to_record(job) for job in jobs]},
            )
        elif is_new:
            experiments.remove_folder(folder)
    return jobs


def main(arguments: list[str]) -> int:
    """Run the command: 1 when a job failed. With `--json` the records are printed, the table goes to standard error."""
    if {"-h", "--help"} & set(arguments):
        print(f"{_USAGE}\n\n{__doc__}\ndocs/versions.md has examples, also of launcher and sweeper plugins.")
        return 0
    jobs = sweep([argument for argument in arguments if argument != "--json"])
    if "--json" in arguments:
        sys.stdout.write(to_json([to_record(job) for job in jobs], indent=True).decode() + "\n")
    return 1 if any(job.status == "failed" for job in jobs) else 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
