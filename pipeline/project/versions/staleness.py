"""Stages that do not agree with a version of the config and the code, from the stage table and dvc.lock alone.

DVC's own `status` answers for the working tree only, after composing, and hashes data. This module answers for any
version, in milliseconds, from documents. `stale` names the stages whose own inputs changed; `followers` adds the stages
that may change because of them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.formats import build_folder
from pipeline.graph import STAGES, Stage
from pipeline.project.versions.lockfile import LockEntry, folder_digest

CONFIG = build_folder.CONFIG.as_posix()
CODE = build_folder.CODE.as_posix()

_ABSENT = "nothing"


def instances(names: Iterable[str]) -> Iterator[tuple[str, Stage, str | None]]:
    """Yield every stage of a build in the order of the table: DVC's name (`audit@code`), the stage, the dataset."""
    listed = sorted(names)
    for stage in STAGES:
        for name in listed if stage.per_dataset else [None]:
            yield (stage.name if name is None else f"{stage.name}@{name}"), stage, name


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def changes(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the leaves in which two documents differ: dotted path, old value, new value; `...` for a missing value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from changes(old.get(key, ...), new.get(key, ...), f"{where}.{key}".lstrip("."))
    elif old != new or type(old) is not type(new):
        yield where, old, new


def describe(path: str, old: Any, new: Any) -> str:
    """Describe one changed value in a line."""
    was, now = (_ABSENT if value is ... else _show(value) for value in (old, new))
    return f"{path}: {was} -> {now}"


def _at(document: Any, path: str) -> Any:
    for part in path.split("."):
        document = document.get(part, ...) if isinstance(document, dict) else ...
    return document


def _param_reasons(stage: Stage, name: str | None, entry: LockEntry, config: Any, code: Any) -> Iterator[str]:
    recorded = entry.params.get(CONFIG, {})
    keys = [template.format(d=name) for template in stage.keys.values()]
    for key in sorted({*keys, *recorded}):
        now = _at(config, key) if key in keys else ...
        for change in changes(recorded.get(key, ...), now, key):
            yield describe(*change)
    if list(changes(entry.params.get(CODE, {}).get(stage.name), _at(code, stage.name))):
        yield "its code or a library changed"


def _digest_of(path: str, outs: dict[str, str], names: Iterable[str]) -> str | None:
    """Return the recorded digest of a path that some stage writes; for the folder of stamps, from the files in it."""
    if path in outs:
        return outs[path]
    inside = {out.removeprefix(f"{path}/"): digest for out, digest in outs.items() if out.startswith(f"{path}/")}
    wanted = {f"{name}.json" for name in names}
    return (
        folder_digest({file: digest for file, digest in inside.items() if file in wanted})
        if wanted <= set(inside)
        else None
    )


def _file_reasons(
    stage: Stage, name: str | None, entry: LockEntry, outs: dict[str, str], names: Iterable[str]
) -> Iterator[str]:
    reads = {template.format(d=name) for template in stage.reads.values() if "{each}" not in template}
    writes = {template.format(d=name) for template in stage.writes.values()}
    for verb, declared, recorded in (("reads", reads, set(entry.deps)), ("writes", writes, set(entry.outs))):
        for path in sorted(declared ^ recorded):
            yield f"{verb} {path} {'now' if path in declared else 'no longer'}"
    for path in sorted(reads & set(entry.deps)):
        if entry.deps[path] != _digest_of(path, outs, names):
            yield f"{path} changed since it ran"


def stale(config: Any, code: Any, lock: dict[str, LockEntry]) -> dict[str, list[str]]:
    """Return the stages whose lock entry does not agree with the config, the code or other entries, with the reasons.

    Args:
        config: the document build/config.json.
        code: the document build/code.json.
        lock: entries of dvc.lock.

    """
    names = config["names"]
    labelled = list(instances(names))
    outs = {path: digest for label, _, _ in labelled if label in lock for path, digest in lock[label].outs.items()}
    reasons_of: dict[str, list[str]] = {}
    for label, stage, name in labelled:
        entry = lock.get(label)
        if entry is None:
            reasons_of[label] = ["has no entry in dvc.lock"]
            continue
        command = f"python -m pipeline {stage.name}" + (f" {name}" if name else "")
        reasons = [] if entry.cmd == command else [f"its command is {command!r} now"]
        reasons += [*_param_reasons(stage, name, entry, config, code), *_file_reasons(stage, name, entry, outs, names)]
        if reasons:
            reasons_of[label] = reasons
    return reasons_of


def affected(old: tuple[Any, Any], new: tuple[Any, Any]) -> dict[str, list[str]]:
    """Return the stages whose own config keys or code differ between two versions, with the reasons.

    Args:
        old: config and code of the older version.
        new: the same of the newer version; all stages of a dataset that only this one has are in the result.

    """
    before = {label for label, _, _ in instances(old[0].get("names", []))}
    found = {}
    for label, stage, name in instances(new[0]["names"]):
        if label not in before:
            found[label] = ["is new"]
            continue
        pairs = [
            (_at(old[0], key.format(d=name)), _at(new[0], key.format(d=name)), key.format(d=name))
            for key in stage.keys.values()
        ]
        reasons = [describe(*change) for was, now, key in pairs for change in changes(was, now, key)]
        if list(changes(_at(old[1], stage.name), _at(new[1], stage.name))):
            reasons.append("its code or a library changed")
        if reasons:
            found[label] = reasons
    return found


def followers(labels: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the stages that read, directly or not, an output of these stages, in the order of the table."""
    listed = list(names)
    first = set(labels)
    found: list[str] = []
    written: set[str] = set()
    for label, stage, name in instances(listed):
        if label not in first:
            if not _reads_any(stage, name, listed, written):
                continue
            found.append(label)
        written |= {template.format(d=name) for template in stage.writes.values()}
    return found


def _reads_any(stage: Stage, name: str | None, names: list[str], written: set[str]) -> bool:
    paths = {template.format(d=name, each=each) for template in stage.reads.values() for each in names}
    return any(out == path or out.startswith(f"{path}/") for path in paths for out in written)
