"""Whether what git holds agrees with conf/, params.yaml and the code: every disagreement, with the command that mends it.

build/config.json, config.yaml and code.json are compared with what `compose` would write, and dvc.lock with those, with
itself and with the small files kept in git. Data is not hashed: `dvc status` does that. No dvc.lock means that nothing
was built yet.
"""

from collections.abc import Iterator
from pathlib import Path

import orjson

from pipeline.core.files import read_bytes
from pipeline.formats.build_folder import BUILD
from pipeline.project.versions.lockfile import LOCK, Entry, file_digest
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
