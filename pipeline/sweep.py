"""Run a Hydra multirun in which every job is a DVC experiment.

    python -m pipeline.sweep -m train.lr=1e-4,3e-4 audit=default,strict

Hydra's grammar, sweepers and launchers work as usual. Each job runs `dvc exp run --temp` in its own copy of HEAD, with
the shared cache and ledger: parts of the build that a job does not change are not built again, and no prompt is paid
for twice. A job's name is a hash of the commit and its overrides, so an interrupted sweep, started again, runs only the
missing jobs.
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
    from pipeline.project.compose import check_jobs, composition_fault, dataset_choices, jobs_of
    from pipeline.project.experiments import SweepJob
    from pipeline.project.overrides import check_grammar, key_of
    from pipeline.project.params import Params, read_params
    from pipeline.project.settings import PARAMS
    from pipeline.project.versions.lockfile import LOCK, read_lock

FOLDER = Path("multirun")
_USAGE = "usage: python -m pipeline.sweep -m KEY=VALUE,VALUE ... [--json] (Hydra's multirun, with its whole grammar)"
_FLAGS = frozenset({"-m", "--multirun"})
_FIXED = frozenset({"hydra.job.chdir", "hydra.mode", "hydra.run.dir", "hydra.sweep.dir"})
"""Settings of Hydra that a sweep relies on: the folder of its records, and the working folder."""
_HYDRA_EXIT_CODES = (1, 2)
"""Codes with which Hydra ends the process after it has printed a message; 143, after SIGTERM, is ours."""
_PROCESS = "AERIE_SWEEP_PROCESS"
"""Environment variable with the id of the sweep's process. Jobs that a launcher runs in other processes end with it."""
_DATASET = re.compile(r"\+dataset@datasets\.")


def dvc_list_item(override: str) -> str:
    r"""Write an override as one string of the list that `dvc exp run -S overrides=[...]` takes.

    A double quote becomes `\"`, and backslashes before a double quote are doubled.

    Raises:
        ConfigError: it holds an interpolation, which Hydra would resolve in this list instead of in conf/.

    """
    if "${" in override:
        raise ConfigError(f"override {override!r}: a sweep cannot pass interpolations on; write them into conf/")
    escaped = re.sub(r'(\\+)(?="|$)', lambda backslashes: backslashes[1] * 2, override)
    return '"' + escaped.replace('"', '\\"') + '"'


def _is_override(argument: str) -> bool:
    return "=" in argument and not argument.startswith("-")


def hydra_arguments(arguments: list[str], params: Params, folder: Path) -> list[str]:
    """Return the arguments for Hydra: datasets and overrides of params.yaml, then those of the user.

    An override of the user replaces one of params.yaml for the same key. Hydra wants all overrides in one run of
    arguments, so the added ones go directly before the user's first one.
    """
    user_keys = {key_of(argument) for argument in arguments if _is_override(argument)}
    added = dataset_choices(params.datasets)
    settings = [
        f"hydra.sweep.dir={folder}",
        "hydra.sweep.subdir=${hydra.job.num}",
        "hydra.output_subdir=null",
        "hydra/job_logging=disabled",
    ]
    added += [override for override in [*params.overrides, *settings] if key_of(override) not in user_keys]
    first = next((n for n, argument in enumerate(arguments) if _is_override(argument)), len(arguments))
    return [*arguments[:first], *added, *arguments[first:]]


def run_job(overrides: list[str], folder: Path) -> SweepJob:
    """Run one job as an experiment, unless that experiment exists; write its record into ``folder``.

    Raises:
        ConfigError: an override cannot be passed on.

    """
    values = ",".join(map(dvc_list_item, overrides))
    commit = experiments.head()
    name = "sweep-" + hashlib.sha256("\0".join([commit, *overrides]).encode()).hexdigest()[:10]
    record = folder / f"{name}.json"
    begin = time.monotonic()
    status, reason, stages = "kept", None, list[str]()
    if not experiments.exists(commit, name):
        print(f"{name}: {' '.join(overrides)}", file=sys.stderr, flush=True)
        status, reason, stages = experiments.run(name, f"overrides=[{values}]", folder / f"{name}.log")
        if status == "failed" and experiments.exists(commit, name):
            status, reason = "kept", None  # another sweep ran the same job at the same time, and finished first
    figures = experiments.figures(commit, name) if status != "failed" else {}
    job = SweepJob(name, overrides, status, round(time.monotonic() - begin, 1), stages, figures, reason)
    if status != "kept" or not record.exists():  # if a sweeper asks for one job twice, the first record says more
        write_json(record, job.to_dict())
    return job


@hydra.main(config_path="../conf", config_name="config", version_base="1.3")  # type: ignore[untyped-decorator]
def _multirun(config: DictConfig) -> float:
    """Run one job for Hydra, which composed the config only as a check: the experiment composes its own.

    Returns the acceptance length, which is at least 1, for sweepers that optimise; 0 for a job that failed, because
    Optuna's sweeper stops at a value that is not a number.
    """
    del config
    if os.environ.get(_PROCESS, str(os.getpid())) != str(os.getpid()):
        follow_parent()
    settings = HydraConfig.get()
    overrides = [override for override in settings.overrides.task if not _DATASET.match(override)]
    return run_job(list(overrides), Path(settings.sweep.dir)).figures.get("acceptance_length") or 0.0


def folder_of(arguments: list[str]) -> Path:
    """Return the folder of a sweep's records, equal for equal sweeps from one commit, so that a sweep can continue."""
    return FOLDER / hashlib.sha256("\0".join([experiments.head(), *arguments]).encode()).hexdigest()[:10]


def check_arguments(arguments: list[str]) -> None:
    """Refuse arguments that are not a multirun, or that would move the records or change the jobs' working folder.

    Raises:
        ConfigError: with the first such argument, and what a sweep takes.

    """
    flags = [argument for argument in arguments if argument.startswith("-")]
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    if unknown := sorted(set(flags) - _FLAGS):
        raise ConfigError(
            f"{unknown[0]!r} is not a flag of a sweep: a job is HEAD and its overrides, nothing else; {_USAGE}"
        )
    if not flags or not any("=" in argument for argument in overrides):
        raise ConfigError(_USAGE)
    check_grammar(overrides, "shell")
    if fixed := [override for override in overrides if key_of(override) in _FIXED]:
        raise ConfigError(f"override {fixed[0]!r}: the sweep itself sets this; its records lie under {FOLDER}/")
    if named := [override for override in overrides if key_of(override) == "datasets" or _DATASET.match(override)]:
        raise ConfigError(f"override {named[0]!r}: {PARAMS} names the datasets to build, no override; commit it there")


def check_values(arguments: list[str], params: Params) -> None:
    """Validate every job's config before the first job runs, and print which jobs will fail.

    Only Hydra's own sweeper is checked: what another sweeper will ask for is not known in advance.

    Raises:
        ConfigError: no job's config is valid.

    """
    added = tuple(dataset_choices(params.datasets))
    given = [argument for argument in hydra_arguments(arguments, params, FOLDER) if not argument.startswith("-")]
    overrides = [argument for argument in given if argument not in added]
    if any(key_of(override).startswith(("hydra/sweeper", "hydra.sweeper")) for override in overrides):
        return
    jobs = jobs_of([override for override in overrides if not key_of(override).startswith(("hydra.", "hydra/"))])
    if message := check_jobs(params.datasets, jobs):
        print(f"{message}\nthe others run; stop with Ctrl-C to mend it first", file=sys.stderr)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder alone, since a second run of the same sweep would remove the records of the first.

    Raises:
        BusyError: the same sweep is running.
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


def sweep(arguments: list[str]) -> list[SweepJob]:
    """Run all jobs, then show the table, also after an interruption.

    Raises:
        BusyError: the same sweep is running.
        ConfigError: the arguments are not a multirun, HEAD lacks something that the jobs need, dvc.lock is broken,
            Hydra refuses an override, or no job's config is valid.

    """
    check_arguments(arguments)
    folder, params = folder_of(arguments), read_params()
    experiments.refuse_uncommitted()
    if read_lock() is None:
        print(
            f"there is no {LOCK}, so every job builds all of it; "
            "`dvc repro` and commit first to share what jobs have in common",
            file=sys.stderr,
        )
    for copy in experiments.remove_abandoned():
        print(f"removed {copy}: a killed experiment left it", file=sys.stderr)
    check_values(arguments, params)
    is_new = not folder.exists()
    with locked(folder):
        return _run_all(arguments, params, folder, is_new=is_new)


def _run_all(arguments: list[str], params: Params, folder: Path, *, is_new: bool) -> list[SweepJob]:
    for old_record in folder.glob("sweep-*.json"):
        old_record.unlink()
    os.environ[_PROCESS] = str(os.getpid())
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints its errors itself, with advice that does not apply here
    given = hydra_arguments(arguments, params, folder)
    sys.argv = [sys.argv[0], *given]
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Hydra prints its jobs to standard output, which programs read
            _multirun()
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(composition_fault(error, given)) from error
    except SystemExit as error:
        if error.code in _HYDRA_EXIT_CODES:
            raise ConfigError(
                f"Hydra refuses the sweep, see above; conf/ has the keys, {PARAMS} the datasets"
            ) from error
        if error.code:  # this process was told to end
            raise
    finally:
        if jobs := experiments.read_jobs(folder):
            experiments.show(jobs, folder / "sweep.json")  # first, because the disk may be full
            records = [job.to_dict() for job in jobs]
            write_json(folder / "sweep.json", {"commit": experiments.head(), "arguments": arguments, "jobs": records})
        elif is_new:
            experiments.remove_folder(folder)
    return jobs


def main(arguments: list[str]) -> int:
    """Run the command: 1 when a job failed. With `--json` the records are printed; the table goes to standard error."""
    if {"-h", "--help"} & set(arguments):
        print(f"{_USAGE}\n\n{__doc__}\ndocs/versions.md has examples, also of launcher and sweeper plugins.")
        return 0
    jobs = sweep([argument for argument in arguments if argument != "--json"])
    if "--json" in arguments:
        sys.stdout.write(to_json([job.to_dict() for job in jobs], indent=True).decode() + "\n")
    return 1 if any(job.status == "failed" for job in jobs) else 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
