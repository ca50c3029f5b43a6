"""Checks of the machine, the repository, the config, the key and the tokenizer, before a build fails on them.

Each check is a function that returns findings. A check changes nothing and opens no connection.
"""

import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.core.code.pins import read_pins
from pipeline.core.errors import AerieError
from pipeline.model.special_tokens import make_record
from pipeline.model.tokenizer.loading import load_tokenizer
from pipeline.project.compose import documents
from pipeline.project.params import read_params
from pipeline.project.settings import BuildConfig
from pipeline.project.versions.agreement import faults
from pipeline.project.versions.lockfile import read_lock

Level = Literal["ok", "warn", "fail"]

_GIB = 1 << 30
_NETWORK_FILESYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "afs",
        "fuse.sshfs",
        "fuse.glusterfs",
    ]
)
"""File systems on which SQLite's write-ahead log, and so the ledger of paid responses, is not safe."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check."""

    level: Level
    """ok; warn: a build works, but the user should know this; fail: a build will not work."""
    subject: str
    message: str
    """The state found, and for warn and fail the remedy."""


def machine() -> Iterator[Diagnosis]:
    """Check the Python version, cores, memory, disk space, and a port on loopback."""
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        yield Diagnosis("ok", "python", version)
    else:
        remedy = "make PYTHON=/path/to/python setup in a clone without .venv"
        yield Diagnosis("fail", "python", f"{version}; Aerie needs 3.11, 3.12 or 3.13: {remedy}")
    cores, memory = len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB
    if memory < 1.9:
        yield Diagnosis("warn", "machine", f"{cores} cores, {memory:.1f} GiB; the default build wants 2 GiB")
    else:
        yield Diagnosis("ok", "machine", f"{cores} cores, {memory:.1f} GiB")
    free = shutil.disk_usage(".").free / _GIB
    level: Level = "fail" if free < 0.5 else "warn" if free < 5 else "ok"
    advice = "" if level == "ok" else "; hidden states are large: `python -m pipeline plan` tells how large"
    yield Diagnosis(level, "disk", f"{free:.1f} GiB free here{advice}")
    try:
        with socket.create_server(("127.0.0.1", 0)):
            yield Diagnosis("ok", "loopback", "a port can be opened, as the embedded provider does")
    except OSError as error:
        message = f"no port can be opened on 127.0.0.1 ({error}); the embedded provider needs one"
        yield Diagnosis("fail", "loopback", message)


def packages() -> Iterator[Diagnosis]:
    """Compare the installed versions with requirements.lock."""
    differing = []
    for name, pinned in read_pins(Path("requirements.lock")).items():
        try:
            installed = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            installed = "missing"
        if installed != pinned:
            differing.append(f"{name} {installed}, pinned {pinned}")
    if differing:
        listed = "; ".join(differing[:5])
        message = f"{len(differing)} differ from requirements.lock ({listed}); `make setup` installs what is pinned"
        yield Diagnosis("warn", "packages", message)
    else:
        yield Diagnosis("ok", "packages", "as pinned in requirements.lock")


def _output_of(*command: str) -> str | None:
    """Return the standard output of a command; None if the command is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def filesystem_of(path: Path, mounts: str) -> str:
    """Return the type of the file system that holds a path.

    Args:
        path: an absolute path.
        mounts: the text of /proc/mounts.

    """
    mount_point, kind = "", "unknown"
    for line in mounts.splitlines():
        fields = line.split()
        candidate = fields[1].replace("\\040", " ")
        inside = str(path) == candidate or str(path).startswith(candidate.rstrip("/") + "/")
        if inside and len(candidate) >= len(mount_point):
            mount_point, kind = candidate, fields[2]
    return kind


def repository() -> Iterator[Diagnosis]:
    """Check git, its merge driver, the ledger's disk, DVC, and the DVC remote."""
    home = _output_of("git", "rev-parse", "--path-format=absolute", "--git-common-dir")
    if home is None:
        message = (
            "this is not a git repository, or git is not installed; DVC and the ledger need one: "
            "git init && git add -A && git commit"
        )
        yield Diagnosis("fail", "git", message)
        return
    yield Diagnosis("ok", "git", home)
    if _output_of("git", "config", "merge.aerie-lock.driver") is None:
        message = "branches that both built will conflict in dvc.lock; `make setup` tells git how to merge it"
        yield Diagnosis("warn", "merge driver", message)
    else:
        yield Diagnosis("ok", "merge driver", "git merges dvc.lock stage by stage")
    mounts = Path("/proc/mounts")
    kind = filesystem_of(Path(home), mounts.read_text()) if mounts.exists() else "unknown"
    if kind in _NETWORK_FILESYSTEMS:
        message = (
            f"{home} lies on {kind}: the ledger of paid responses needs a local disk, or two machines may corrupt it; "
            "clone to a local disk"
        )
        yield Diagnosis("fail", "ledger", message)
    else:
        yield Diagnosis("ok", "ledger", f"on a local disk ({kind})")
    if not Path(".dvc").is_dir():
        yield Diagnosis("fail", "dvc", "there is no .dvc/ here; run this from the top of the clone")
    elif _output_of(sys.executable, "-m", "dvc", "remote", "list"):
        yield Diagnosis("ok", "remote", "data can be shared: dvc push, dvc pull")
    else:
        message = "no DVC remote, so the data lives on this machine only; docs/versions.md, `dvc remote add -d`"
        yield Diagnosis("warn", "remote", message)


def configuration() -> Iterator[Diagnosis]:
    """Check conf/ and params.yaml, then the key, the budget, the devices, the tokenizer and the files in git."""
    try:
        config, files = documents(read_params())
    except AerieError as error:
        yield Diagnosis("fail", "config", str(error))
        return
    summary = f"{len(config.names)} datasets, target {config.target.name}, provider {config.provider.kind}"
    yield Diagnosis("ok", "config", summary)
    yield from provider(config)
    yield from devices(config)
    yield tokenizer(config)
    try:
        disagreements = faults(files, read_lock())
    except AerieError as error:
        yield Diagnosis("fail", "dvc.lock", str(error))
        return
    if disagreements:
        message = "build/ and dvc.lock do not agree with conf/ and the code; `python -m pipeline verify` says where"
        yield Diagnosis("warn", "versions", message)
    else:
        yield Diagnosis("ok", "versions", "build/ and dvc.lock agree with conf/ and the code")


def provider(config: BuildConfig) -> Iterator[Diagnosis]:
    """Check that the key is set, without showing it, and that a paid provider has a cap."""
    variable = config.provider.api_key_env
    if variable is not None and os.environ.get(variable):
        yield Diagnosis("ok", "key", f"{variable} is set")
    elif variable is not None:
        yield Diagnosis("fail", "key", f"{variable} is not set; export it, and put it in no file")
    if config.provider.kind == "openrouter" and config.budget.usd is None:
        message = "budget.usd is null, so nothing caps the cost of a build; set it in conf/config.yaml or params.yaml"
        yield Diagnosis("warn", "budget", message)


def devices(config: BuildConfig) -> Iterator[Diagnosis]:
    """Check that the devices of the stages exist."""
    device_of = {name: getattr(config, name).device for name in ("extract", "train", "evaluate")}
    if all(device == "cpu" for device in device_of.values()):
        return
    import torch  # slow to import, and not needed on a CPU

    for stage, device in device_of.items():
        if device.startswith("cuda") and not torch.cuda.is_available():
            message = f"{stage}.device is {device!r}, and torch {torch.__version__} sees no GPU here"
            yield Diagnosis("fail", f"device of {stage}", message)
        else:
            yield Diagnosis("ok", f"device of {stage}", device)


def tokenizer(config: BuildConfig) -> Diagnosis:
    """Check the target's tokenizer and its special-token map against each other, in both directions."""
    try:
        record = make_record(config.target, load_tokenizer(config.target))
    except AerieError as error:
        return Diagnosis("fail", "tokenizer", str(error))
    source = f"{record.tokenizer.backend} {record.tokenizer.name}"
    return Diagnosis("ok", "tokenizer", f"{source}, {len(record.special_tokens)} special tokens agree")


CHECKS: tuple[Callable[[], Iterator[Diagnosis]], ...] = (machine, packages, repository, configuration)
