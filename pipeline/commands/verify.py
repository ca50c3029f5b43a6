"""`python -m pipeline verify`: does what git holds agree with conf/, params.yaml and the code? Writes nothing, runs nothing.

Compared are build/config.json, config.yaml and code.json with what `compose` would write, and dvc.lock with those, with
itself and with the small files kept in git. Data is not hashed: that is `dvc status`. No dvc.lock means that nothing was built yet.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from pipeline.core.errors import ConfigError
from pipeline.core.files import read_bytes
from pipeline.project.compose import BUILD, documents, read_params
from pipeline.project.versions.lockfile import LOCK, Entry, file_digest, read_lock
from pipeline.project.versions.staleness import changes, describe, followers, instances, stale

_SHOWN = 12
"""Differences listed for one file or stage; the rest is counted."""


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"... and {len(lines) - _SHOWN} more"]


def _document_faults(path: Path, wanted: bytes) -> list[str]:
    """How a composed file differs from what compose would write; nothing when it does not."""
    if not path.exists():
        return [f"{path} is missing"]
    found = read_bytes(path)
    if found == wanted:
        return []
    if path.suffix != ".json":
        return [f"{path} is not what conf/ composes to"]
    try:
        differences = [describe(*change) for change in changes(orjson.loads(found), orjson.loads(wanted))]
    except orjson.JSONDecodeError as error:
        return [f"{path} is not JSON: {error}"]
    listed = _shortened(differences) or ["the same values, written differently"]
    return [f"{path} (in the file -> composed):", *(f"  {line}" for line in listed)]


def _kept_files(lock: dict[str, Entry], names: list[str]) -> Iterator[tuple[str, str, str]]:
    """Each file kept in git that the build wrote: stage, path, recorded digest."""
    for label, stage, name in instances(names):
        entry = lock.get(label)
        for template in stage.kept_in_git():
            path = template.format(d=name)
            if entry is not None and path in entry.outs:
                yield label, path, entry.outs[path]


def _lock_faults(files: dict[Path, bytes], lock: dict[str, Entry]) -> list[str]:
    """How dvc.lock disagrees with the composed files, with itself, and with the files kept in git."""
    config, code = (orjson.loads(files[BUILD / name]) for name in ("config.json", "code.json"))
    reasons = stale(config, code, lock)
    composed = lock.get("compose")
    if composed is None or any(
        composed.outs.get(path.as_posix()) != file_digest(content) for path, content in files.items()
    ):
        reasons = {"compose": ["did not run since conf/, params.yaml or the code changed"], **reasons}
    for label, path, digest in _kept_files(lock, config["names"]):
        if not Path(path).exists():
            reasons.setdefault(label, []).append(f"{path} is missing, and git should hold it")
        elif file_digest(read_bytes(Path(path))) != digest:
            reasons.setdefault(label, []).append(f"{path} is not the file that it wrote")
    lines = [
        line
        for label, found in reasons.items()
        for line in (f"  {label}:", *(f"    {reason}" for reason in _shortened(found)))
    ]
    after = followers(reasons, config["names"])
    if lines and after:
        lines.append(f"  what follows may change too: {', '.join(after)}")
    return lines


def faults(files: dict[Path, bytes], lock: dict[str, Entry] | None) -> list[str]:
    """Every disagreement, and after each kind of it the command that mends it.

    Args:
        files: what compose would write, by path.
        lock: entries of dvc.lock; None when there is none.

    """
    lines = [line for path, content in files.items() for line in _document_faults(path, content)]
    if lines:
        lines.append(f"mend it: python -m pipeline compose && git add {' '.join(map(str, files))}")
    if lock is not None and (found := _lock_faults(files, lock)):
        mend = "mend it: dvc repro && git add dvc.lock build (`python -m pipeline plan` tells first what would be paid)"
        lines += [f"{LOCK} does not agree with conf/ and the code:", *found, mend]
    return lines


def main(argv: list[str]) -> None:
    """Say that all agrees.

    Raises:
        ConfigError: something does not, and how to mend it; or conf/ or dvc.lock cannot be read at all.

    """
    argparse.ArgumentParser(prog="python -m pipeline verify", description=__doc__).parse_args(argv)
    lock = read_lock()
    _, files = documents(read_params())
    if found := faults(files, lock):
        raise ConfigError("what git holds does not agree with conf/ and the code:\n  " + "\n  ".join(found))
    state: Any = "nothing built yet (no dvc.lock)" if lock is None else f"dvc.lock agrees ({len(lock)} stages)"
    print(f"{', '.join(map(str, files))} agree with conf/ and the code; {state}")
