"""`python -m pipeline doctor`: checks the machine, the repository, the config, the key and the tokenizer, before a build finds out.

Every check is a function that returns findings; it changes nothing and opens no connection. Exit 0 when a build can start, 2 when it cannot.
"""

import argparse
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

from rich.console import Console

from pipeline.core.errors import AerieError
from pipeline.core.fingerprint import read_pins
from pipeline.model.special_tokens import make_record
from pipeline.model.tokenizer.loading import load_tokenizer
from pipeline.project.compose import documents
from pipeline.project.params import read_params
from pipeline.project.settings import BuildConfig
from pipeline.project.versions.agreement import faults
from pipeline.project.versions.lockfile import read_lock

Level = Literal["ok", "warn", "fail"]

_GIB = 1 << 30
_REMOTE_FILESYSTEMS = (
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
)
"""Where SQLite's write-ahead log, which the ledger of paid responses uses, is not safe."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    """ok; warn: a build works, but something is worth knowing; fail: it will not."""
    about: str
    said: str
    """What was found, and for the others than ok what to do."""


def machine() -> Iterator[Finding]:
    """Python, cores, memory, disk, loopback."""
    version = ".".join(map(str, sys.version_info[:3]))
    right = sys.version_info[:2] == (3, 11)
    yield Finding(
        "ok" if right else "fail",
        "python",
        version if right else f"{version}; Aerie needs 3.11: make PYTHON=/path/to/python3.11 setup",
    )
    cores, memory = len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB
    little = memory < 1.9
    yield Finding(
        "warn" if little else "ok",
        "machine",
        f"{cores} cores, {memory:.1f} GiB" + ("; the default build wants 2 GiB" if little else ""),
    )
    free = shutil.disk_usage(".").free / _GIB
    level: Level = "fail" if free < 0.5 else "warn" if free < 5 else "ok"
    yield Finding(
        level,
        "disk",
        f"{free:.1f} GiB free here"
        + ("" if level == "ok" else "; hidden states are large: `python -m pipeline plan` tells how large"),
    )
    try:
        with socket.create_server(("127.0.0.1", 0)):
            yield Finding("ok", "loopback", "a port can be opened, as the embedded provider does")
    except OSError as error:
        yield Finding(
            "fail", "loopback", f"no port can be opened on 127.0.0.1 ({error}); the embedded provider needs one"
        )


def packages() -> Iterator[Finding]:
    """Installed versions against requirements.lock."""
    wrong = []
    for name, pinned in read_pins(Path("requirements.lock")).items():
        try:
            found = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found = "missing"
        if found != pinned:
            wrong.append(f"{name} {found}, pinned {pinned}")
    if wrong:
        yield Finding(
            "warn",
            "packages",
            f"{len(wrong)} differ from requirements.lock ({'; '.join(wrong[:5])}); `make setup` installs what is pinned",
        )
    else:
        yield Finding("ok", "packages", "as pinned in requirements.lock")


def _said(*command: str) -> str | None:
    """What a command printed, or None when it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def filesystem_of(path: Path, mounts: str) -> str:
    """Type of the file system that a path lies on, by the text of /proc/mounts."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        fields = line.split()
        place = fields[1].replace("\\040", " ")
        inside = str(path) == place or str(path).startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, fields[2]
    return kind


def repository() -> Iterator[Finding]:
    """Git, its merge drivers, DVC, the ledger's disk, the remote."""
    home = _said("git", "rev-parse", "--path-format=absolute", "--git-common-dir")
    if home is None:
        yield Finding(
            "fail",
            "git",
            "this is no git repository, or git is not installed; DVC and the ledger need one: git init && git add -A && git commit",
        )
        return
    yield Finding("ok", "git", home)
    if _said("git", "config", "merge.aerie-lock.driver") is None:
        yield Finding(
            "warn",
            "merge driver",
            "branches that both built will conflict in dvc.lock; `make setup` tells git how to merge it",
        )
    else:
        yield Finding("ok", "merge driver", "git merges dvc.lock stage by stage")
    mounts = Path("/proc/mounts")
    kind = filesystem_of(Path(home), mounts.read_text()) if mounts.exists() else "unknown"
    if kind in _REMOTE_FILESYSTEMS:
        yield Finding(
            "fail",
            "ledger",
            f"{home} lies on {kind}: the ledger of paid responses needs a local disk, or two machines may corrupt it; clone to a local disk",
        )
    else:
        yield Finding("ok", "ledger", f"on a local disk ({kind})")
    if not Path(".dvc").is_dir():
        yield Finding("fail", "dvc", "there is no .dvc/ here; run this from the top of the clone")
    elif _said(sys.executable, "-m", "dvc", "remote", "list"):
        yield Finding("ok", "remote", "data can be shared: dvc push, dvc pull")
    else:
        yield Finding(
            "warn",
            "remote",
            "no DVC remote, so the data lives on this machine only; docs/versions.md, `dvc remote add -d`",
        )


def configuration() -> Iterator[Finding]:
    """conf/, params.yaml, the key, the budget, the device, the tokenizer, what git holds."""
    try:
        config, files = documents(read_params())
    except AerieError as error:
        yield Finding("fail", "config", str(error))
        return
    yield Finding(
        "ok", "config", f"{len(config.names)} datasets, target {config.target.name}, provider {config.provider.kind}"
    )
    yield from provider(config)
    yield from devices(config)
    yield tokenizer(config)
    try:
        disagreements = faults(files, read_lock())
    except AerieError as error:
        yield Finding("fail", "dvc.lock", str(error))
        return
    if disagreements:
        yield Finding(
            "warn",
            "versions",
            "what git holds does not agree with conf/ and the code; `python -m pipeline verify` says where",
        )
    else:
        yield Finding("ok", "versions", "build/ and dvc.lock agree with conf/ and the code")


def provider(config: BuildConfig) -> Iterator[Finding]:
    """The key, by name and never by value; the caps of what costs money."""
    section = config.provider
    if section.api_key_env is not None:
        found = os.environ.get(section.api_key_env)
        said = (
            f"{section.api_key_env} is set"
            if found
            else f"{section.api_key_env} is not set; export it, and put it in no file"
        )
        yield Finding("ok" if found else "fail", "key", said)
    if section.kind == "openrouter" and config.budget.usd is None:
        yield Finding(
            "warn",
            "budget",
            "budget.usd is null, so nothing caps what a build may spend; set it in conf/config.yaml or params.yaml",
        )


def devices(config: BuildConfig) -> Iterator[Finding]:
    """Devices that stages ask for."""
    wanted = {name: getattr(config, name).device for name in ("extract", "train", "evaluate")}
    if all(device == "cpu" for device in wanted.values()):
        return
    import torch  # slow to import, and not needed on a CPU

    for name, device in wanted.items():
        if device.startswith("cuda") and not torch.cuda.is_available():
            yield Finding(
                "fail",
                f"device of {name}",
                f"{name}.device is {device!r}, and torch {torch.__version__} sees no GPU here",
            )
        else:
            yield Finding("ok", f"device of {name}", device)


def tokenizer(config: BuildConfig) -> Finding:
    """The target's tokenizer and special-token map, checked against each other in both directions."""
    try:
        record = make_record(config.target, load_tokenizer(config.target))
    except AerieError as error:
        return Finding("fail", "tokenizer", str(error))
    return Finding(
        "ok",
        "tokenizer",
        f"{record.tokenizer.backend} {record.tokenizer.name}, {len(record.special_tokens)} special tokens agree",
    )


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (machine, packages, repository, configuration)


def main(argv: list[str]) -> int:
    """Show what was found; return 2 when something would stop a build."""
    argparse.ArgumentParser(prog="python -m pipeline doctor", description=__doc__).parse_args(argv)
    console = Console(highlight=False, soft_wrap=True)
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    found = [finding for check in CHECKS for finding in check()]
    for finding in found:
        console.print(f"[{styles[finding.level]}]{finding.level:<5}[/]", end="")
        console.print(f"{finding.about}: {finding.said}", markup=False)
    counts = {level: sum(finding.level == level for finding in found) for level in styles}
    console.print(f"{counts['ok']} ok, {counts['warn']} to know, {counts['fail']} to mend", markup=False)
    return 2 if counts["fail"] else 0
