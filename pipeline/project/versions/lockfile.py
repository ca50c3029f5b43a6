"""dvc.lock, which DVC writes and Aerie reads: the command, inputs, parameters and outputs of each stage."""

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
_RESTORE = "restore it with `git checkout dvc.lock`, or delete it and run `dvc repro`"


@dataclass(frozen=True, slots=True)
class LockEntry:
    """The record that DVC wrote when a stage last ran."""

    cmd: str
    deps: dict[str, str] = field(default_factory=dict)
    """Path to MD5 digest; the digest of a folder ends in `.dir`."""
    outs: dict[str, str] = field(default_factory=dict)
    params: dict[str, dict[str, Any]] = field(default_factory=dict)
    """File to dotted key to value."""


@no_collector()
def parse_lock(content: bytes, where: str) -> dict[str, LockEntry]:
    """Parse a lock file into entries by stage name, for example `audit@code`.

    Raises:
        ConfigError: it holds conflict markers, is not YAML, or is not in the form that DVC writes.

    """
    entries = {}
    for name, entry in raw_stages(content, where).items():
        try:
            parsed = LockEntry(
                cmd=entry["cmd"],
                deps={item["path"]: item["md5"] for item in entry.get("deps", [])},
                outs={item["path"]: item["md5"] for item in entry.get("outs", [])},
                params={file: dict(values) for file, values in entry.get("params", {}).items()},
            )
            texts: list[Any] = [
                name,
                parsed.cmd,
                *parsed.deps,
                *parsed.deps.values(),
                *parsed.outs,
                *parsed.outs.values(),
            ]
            if others := [text for text in texts if not isinstance(text, str)]:
                raise TypeError(f"{others[0]!r} where a text belongs")
            entries[name] = parsed
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{where}: the entry of stage {name!r} is not in the form that DVC writes ({error!r}); "
                "delete the entry and run `dvc repro`"
            ) from error
    return entries


def raw_stages(content: bytes, where: str) -> dict[str, Any]:
    """Parse a lock file into plain values by stage name; an empty file gives an empty result.

    Raises:
        ConfigError: it holds conflict markers, is not YAML, or has another schema.

    """
    if (line := conflict_line(content)) is not None:
        raise ConfigError(
            f"{where}: holds git's conflict markers, from line {line} on, so DVC cannot read it. "
            "`make setup` installs a merge driver that merges it stage by stage: run it, then "
            "`git checkout --merge dvc.lock`; docs/versions.md tells what to do by hand"
        )
    try:
        document = parse_dvc_yaml(content)
    except YAMLError as error:
        raise ConfigError(f"{yaml_error_message(where, content, error)}; {_RESTORE}") from error
    if document is None:
        return {}
    if (
        not isinstance(document, dict)
        or document.get("schema") != _SCHEMA
        or not isinstance(document.get("stages", {}), dict)
    ):
        raise ConfigError(f"{where}: expected DVC's schema {_SCHEMA!r} with `stages`; {_RESTORE}")
    stages: dict[str, Any] = document.get("stages") or {}
    return stages


def read_lock(path: Path = LOCK) -> dict[str, LockEntry] | None:
    """Read the lock file; None if there is no such file, because nothing was built yet.

    Raises:
        ConfigError: as `parse_lock`.

    """
    return parse_lock(read_bytes(path), str(path)) if path.exists() else None


def file_digest(content: bytes) -> str:
    """Return the MD5 digest of a file, as DVC computes it."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def folder_digest(files: dict[str, str]) -> str:
    """Return the digest of a folder, as DVC computes it, from its files' relative paths and digests."""
    listed = [{"md5": files[path], "relpath": path} for path in sorted(files)]
    return file_digest(json.dumps(listed, sort_keys=True).encode()) + ".dir"
