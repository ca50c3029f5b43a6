"""Which stages do not agree with a version of the config and the code: from the stage table and dvc.lock alone.

DVC's own `status` answers for the working tree only, after composing, and hashes data; this answers for any version, in
milliseconds, from documents. It names what is stale by itself; `followers` adds what may change because of it.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.graph import STAGES, Stage
from pipeline.project.versions.lockfile import Entry, folder_digest

CONFIG = "build/config.json"
CODE = "build/code.json"

_ABSENT = "nothing"


def instances(names: Iterable[str]) -> Iterator[tuple[str, Stage, str | None]]:
    """Every stage of a build as DVC names it, in the order of the table: `audit@code`, its stage, its dataset."""
    listed = sorted(names)
    for stage in STAGES:
        for name in listed if stage.per_dataset else [None]:
            yield (stage.name if name is None else f"{stage.name}@{name}"), stage, name


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def changes(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Leaves in which two documents differ: dotted path, old value, new value; a missing one is `...`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from changes(old.get(key, ...), new.get(key, ...), f"{where}.{key}".lstrip("."))
    elif old != new or type(old) is not type(new):
        yield where, old, new


def describe(path: str, old: Any, new: Any) -> str:
    """One changed value for people."""
    was, now = (_ABSENT if value is ... else _show(value) for value in (old, new))
    return f"{path}: {was} -> {now}"


def _at(document: Any, path: str) -> Any:
    for part in path.split("."):
        document = document.get(part, ...) if isinstance(document, dict) else ...
    return document


def _param_reasons(stage: Stage, name: str | None, entry: Entry, config: Any, code: Any) -> Iterator[str]:
    recorded = entry.params.get(CONFIG, {})
    keys = [template.format(d=name) for template in stage.keys.values()]
    for key in sorted({*keys, *recorded}):
        now = _at(config, key) if key in keys else ...
        for found in changes(recorded.get(key, ...), now, key):
            yield describe(*found)
    if list(changes(entry.params.get(CODE, {}).get(stage.name), _at(code, stage.name))):
        yield "its code or a library changed"


def _digest_of(path: str, outs: dict[str, str], names: Iterable[str]) -> str | None:
    """Recorded digest of a path that some stage writes; of a folder, from the files that lie in it."""
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
    stage: Stage, name: str | None, entry: Entry, outs: dict[str, str], names: Iterable[str]
) -> Iterator[str]:
    reads = {template.format(d=name) for template in stage.reads.values() if "{each}" not in template}
    writes = {template.format(d=name) for template in stage.writes.values()}
    for what, wanted, found in (("reads", reads, set(entry.deps)), ("writes", writes, set(entry.outs))):
        for path in sorted(wanted ^ found):
            yield f"{what} {path} {'now' if path in wanted else 'no longer'}"
    for path in sorted(reads & set(entry.deps)):
        if entry.deps[path] != _digest_of(path, outs, names):
            yield f"{path} changed since it ran"


def stale(config: Any, code: Any, lock: dict[str, Entry]) -> dict[str, list[str]]:
    """Stages whose entry in the lock does not agree with the config, the code or the other entries, each with its reasons.

    Args:
        config: the document build/config.json.
        code: the document build/code.json.
        lock: entries of dvc.lock.

    """
    names = config["names"]
    known = list(instances(names))
    outs = {path: digest for label, _, _ in known if label in lock for path, digest in lock[label].outs.items()}
    found: dict[str, list[str]] = {}
    for label, stage, name in known:
        entry = lock.get(label)
        if entry is None:
            found[label] = ["has no entry in dvc.lock"]
            continue
        command = f"python -m pipeline {stage.name}" + (f" {name}" if name else "")
        reasons = [] if entry.cmd == command else [f"its command is {command!r} now"]
        reasons += [*_param_reasons(stage, name, entry, config, code), *_file_reasons(stage, name, entry, outs, names)]
        if reasons:
            found[label] = reasons
    return found


def affected(old: tuple[Any, Any], new: tuple[Any, Any]) -> dict[str, list[str]]:
    """Stages whose own slice of the config, or whose code, differs between two versions; each version is (config, code).

    A dataset's stages that are only in the new version are among them.
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
    """Stages that read, directly or not, what these stages write: at most these run after them. In the order of the table."""
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
