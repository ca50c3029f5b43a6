"""Digest of a stage's code, for the keys of the reuse cache.

It covers the stage's fingerprint, as build/code.json has it, and the installed versions of the libraries and of Python.
The fingerprint is taken from the sources, because build/code.json is out of date between an edit and the next
`compose`.
"""

import hashlib
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import orjson

from pipeline.core.code.fingerprint import fingerprints
from pipeline.core.code.modules import PACKAGE
from pipeline.core.files.contents import read_bytes
from pipeline.core.files.json_file import to_json
from pipeline.core.process.start_time import STARTED

ROOT = Path(__file__).resolve().parents[3]
"""Folder that holds the package and requirements.lock."""


class Notes(Protocol):
    """Small values that outlive the process."""

    def note(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""

    def set_note(self, key: bytes, value: bytes) -> None:
        """Store the value of a key."""


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of the parts; several parts enter with their lengths, so that no two lists are equal."""
    if len(parts) == 1:
        return hashlib.sha256(parts[0]).digest()
    combined = hashlib.sha256()
    for part in parts:
        combined.update(len(part).to_bytes(8, "little"))
        combined.update(part)
    return combined.digest()


def code_digest(stage: str, notes: Notes) -> bytes:
    """Return the digest of a stage's code and of the installed versions of its libraries and of Python.

    The import walk takes half a second, so the fingerprint is noted under the digest of the sources.

    Raises:
        AerieError: the code has no fingerprint.

    """
    sources = _sources()
    key = digest(b"code", stage.encode(), sources)
    if (fingerprint := notes.note(key)) is None:
        fingerprint = _fingerprint(stage, sources)
        notes.set_note(key, fingerprint)
    return digest(fingerprint, _installed(fingerprint), repr(sys.version_info[:3]).encode())


@cache
def edited_meanwhile() -> bool:
    """Return whether a source is younger than this process, so that the running code may differ from the files.

    The answer is cached, as the digest of the sources is.
    """
    return any(path.stat().st_mtime >= STARTED for path in _files())


def _files() -> list[Path]:
    """Return all files of the package, and the lock."""
    inside = [
        path
        for path in sorted((ROOT / PACKAGE).rglob("*"))
        if path.is_file() and path.parent.name != "__pycache__" and not path.name.startswith(".")
    ]
    lock = ROOT / "requirements.lock"
    return [*inside, *([lock] if lock.is_file() else [])]


@cache
def _sources() -> bytes:
    """Return the digest of all files of the package, and of the lock."""
    return digest(
        b"sources", *(part for path in _files() for part in (str(path.relative_to(ROOT)).encode(), read_bytes(path)))
    )


@cache
def _fingerprint(stage: str, _sources: bytes) -> bytes:
    """Walk the imports, once per process and state of the sources."""
    return to_json(fingerprints(ROOT, [stage])[stage])


@cache
def _installed(fingerprint: bytes) -> bytes:
    """Return the installed versions of a fingerprint's libraries, which may differ from the lock."""
    names = sorted(orjson.loads(fingerprint)["libraries"])
    return repr([(name, _version(name)) for name in names]).encode()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
