"""dvc.lock: which command, inputs, parameters and code made which outputs. DVC writes it; here it is only read."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml.error import YAMLError

from pipeline.core.dvc_yaml import parse_dvc_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.files.contents import read_bytes
from pipeline.core.parse_errors import conflict_line, yaml_error_message
from pipeline.core.process.garbage_collection import no_collector

LOCK = Path("dvc.lock")

_SCHEMA = "2.0"


@dataclass(frozen=True, slots=True)
class Entry:
    """What DVC recorded when a stage last ran."""

    cmd: str
    deps: dict[str, str] = field(default_factory=dict)
    """Path to digest; a folder's digest ends in `.dir`."""
    outs: dict[str, str] = field(default_factory=dict)
    params: dict[str, dict[str, Any]] = field(default_factory=dict)
    """File to dotted key to value."""


@no_collector()
def parse_lock(content: bytes, where: str) -> dict[str, Entry]:
    """Entries of a lock file by stage name, such as `audit@code`.

    Raises:
        ConfigError: conflict markers, not YAML, or not what DVC writes.

    """
    entries = {}
    for name, entry in raw_stages(content, where).items():
        try:
            found = Entry(
                cmd=entry["cmd"],
                deps={item["path"]: item["md5"] for item in entry.get("deps", [])},
                outs={item["path"]: item["md5"] for item in entry.get("outs", [])},
                params={file: dict(values) for file, values in entry.get("params", {}).items()},
            )
            texts: list[Any] = [name, found.cmd, *found.deps, *found.deps.values(), *found.outs, *found.outs.values()]
            if odd := [text for text in texts if not isinstance(text, str)]:
                raise TypeError(f"{odd[0]!r} where a text belongs")
            entries[name] = found
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{where}: the entry of stage {name!r} is not what DVC writes ({error!r}); delete the entry and run `dvc repro`"
            ) from error
    return entries


def raw_stages(content: bytes, where: str) -> dict[str, Any]:
    """Stages of a lock file, each as the plain value that stands there; an empty file has none.

    Raises:
        ConfigError: conflict markers, not YAML, or another schema.

    """
    if (line := conflict_line(content)) is not None:
        raise ConfigError(
            f"{where}: holds git's conflict markers, from line {line} on, so DVC cannot read it. `make setup` installs a merge driver that joins it stage by stage: "
            f"run it, then `git checkout --merge dvc.lock`; docs/versions.md tells what to do by hand"
        )
    try:
        document = parse_dvc_yaml(content)
    except YAMLError as error:
        raise ConfigError(
            f"{yaml_error_message(where, content, error)}; restore it with `git checkout dvc.lock`, or delete it and run `dvc repro`"
        ) from error
    if document is None:
        return {}
    if (
        not isinstance(document, dict)
        or document.get("schema") != _SCHEMA
        or not isinstance(document.get("stages", {}), dict)
    ):
        raise ConfigError(
            f"{where}: expected DVC's schema {_SCHEMA!r} with `stages`; restore it with `git checkout dvc.lock`, or delete it and run `dvc repro`"
        )
    stages: dict[str, Any] = document.get("stages") or {}
    return stages


def read_lock(path: Path = LOCK) -> dict[str, Entry] | None:
    """Entries of the lock file, or None when there is none: nothing was built yet.

    Raises:
        ConfigError: as `parse_lock`.

    """
    return parse_lock(read_bytes(path), str(path)) if path.exists() else None


def file_digest(content: bytes) -> str:
    """Digest of a file, as DVC takes it."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def folder_digest(files: dict[str, str]) -> str:
    """Digest of a folder, as DVC takes it, from its files' relative paths and digests."""
    listed = [{"md5": files[path], "relpath": path} for path in sorted(files)]
    return file_digest(json.dumps(listed, sort_keys=True).encode()) + ".dir"
