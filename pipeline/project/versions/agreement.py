"""Agreement of build/ and dvc.lock with conf/, params.yaml and the code: every disagreement, with its remedy.

build/config.json, config.yaml and code.json are compared with what `compose` would write; dvc.lock with those, with
itself, and with the small files kept in git. Data is not hashed: `dvc status` does that. No dvc.lock means that nothing
was built yet.
"""

from collections.abc import Iterator
from pathlib import Path

import orjson

from pipeline.core.errors import InputError
from pipeline.core.files.contents import read_bytes
from pipeline.formats.build_folder import CODE, CONFIG
from pipeline.project.git import uncommitted
from pipeline.project.versions.lockfile import LOCK, LockEntry, file_digest
from pipeline.project.versions.staleness import changes, describe, followers, instances, stale

_LISTED = 12
"""Differences listed for one file or stage; the others are counted."""

_SOURCES = ["conf", "data", "params.yaml", "pipeline", "requirements.lock"]
"""Inputs of `compose`."""


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _LISTED else [*lines[:_LISTED], f"... and {len(lines) - _LISTED} more"]


def _document_faults(path: Path, wanted: bytes) -> list[str]:
    """Return the differences between a composed file and what compose would write."""
    if not path.exists():
        return [f"{path} is missing"]
    content = read_bytes(path)
    if content == wanted:
        return []
    if path.suffix != ".json":
        return [f"{path} is not what conf/ composes to"]
    try:
        differences = [describe(*change) for change in changes(orjson.loads(content), orjson.loads(wanted))]
    except orjson.JSONDecodeError as error:
        return [f"{path} is not JSON: {error}"]
    listed = _shortened(differences) or ["the same values, written differently"]
    return [f"{path} (in the file -> composed):", *(f"  {line}" for line in listed)]


def _cause(composed: list[str]) -> list[str]:
    """Return whether composed files are out of date by edits in this work tree or in the last commit itself."""
    try:
        edited = uncommitted(_SOURCES)
        rewritten = uncommitted(composed)
    except InputError:
        return []
    if edited:
        return [f"edited since the last commit, and not composed yet: {', '.join(_shortened(edited))}"]
    if rewritten:
        return [f"not as in the last commit: {', '.join(rewritten)}"]
    return ["the last commit itself holds stale files: it was made without composing"]


def _kept_files(lock: dict[str, LockEntry], names: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield stage, path and recorded digest of each file that the build wrote and git keeps."""
    for label, stage, name in instances(names):
        entry = lock.get(label)
        for template in stage.kept_in_git():
            path = template.format(d=name)
            if entry is not None and path in entry.outs:
                yield label, path, entry.outs[path]


def _lock_faults(files: dict[Path, bytes], lock: dict[str, LockEntry]) -> list[str]:
    """Return how dvc.lock disagrees with the composed files, with itself, and with the files kept in git."""
    config, code = orjson.loads(files[CONFIG]), orjson.loads(files[CODE])
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
        for label, listed in reasons.items()
        for line in (f"  {label}:", *(f"    {reason}" for reason in _shortened(listed)))
    ]
    after = followers(reasons, config["names"])
    if lines and after:
        lines.append(f"  what follows may change too: {', '.join(after)}")
    return lines


def faults(files: dict[Path, bytes], lock: dict[str, LockEntry] | None) -> list[str]:
    """Return every disagreement, and after each group the command that mends it.

    Args:
        files: the content that compose would write, by path.
        lock: entries of dvc.lock; None if there is no such file.

    """
    lines = [line for path, content in files.items() for line in _document_faults(path, content)]
    if lines:
        paths = list(map(str, files))
        lines += [*_cause(paths), f"mend it: python -m pipeline compose && git add {' '.join(paths)}"]
    if lock is not None and (lock_faults := _lock_faults(files, lock)):
        remedy = "mend it: dvc repro && git add dvc.lock build (`python -m pipeline plan` tells the cost first)"
        lines += [f"{LOCK} does not agree with conf/ and the code:", *lock_faults, remedy]
    return lines
