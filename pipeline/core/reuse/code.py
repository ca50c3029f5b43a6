"""What the code of a stage is, for the keys of kept rows: the syntax of its import closure, as build/code.json has it, and the versions installed.

Taken from the sources themselves and not from build/code.json, which is old after an edit until `compose` has run.
"""

import hashlib
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import orjson

from pipeline.core.files import read_bytes, to_json
from pipeline.core.fingerprint import PACKAGE, fingerprints
from pipeline.core.process.runner import STARTED

ROOT = Path(__file__).resolve().parents[3]
"""Folder that holds the package and requirements.lock."""


class Notes(Protocol):
    """Small values that outlive the process."""

    def note(self, key: bytes) -> bytes | None:
        """Give a value."""

    def set_note(self, key: bytes, value: bytes) -> None:
        """Keep a value."""


def digest(*parts: bytes) -> bytes:
    """SHA-256 of parts; of several, with their lengths, so that no two lists of parts run together."""
    if len(parts) == 1:
        return hashlib.sha256(parts[0]).digest()
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


def code_digest(stage: str, notes: Notes) -> bytes:
    """Digest of a stage's code, of its libraries' versions and of Python's.

    Walking the syntax takes half a second, so the answer is noted under the digest of the sources.

    Raises:
        AerieError: the code has no fingerprint.

    """
    sources = _sources()
    key = digest(b"code", stage.encode(), sources)
    if (known := notes.note(key)) is None:
        known = _fingerprint(stage, sources)
        notes.set_note(key, known)
    return digest(known, _installed(known), repr(sys.version_info[:3]).encode())


@cache
def edited_meanwhile() -> bool:
    """Whether a source is younger than this process: then what runs may not be what the files say. Asked once, as the digest is taken once."""
    return any(path.stat().st_mtime >= STARTED for path in _files())


def _files() -> list[Path]:
    """All files of the package, and the lock."""
    inside = [
        path
        for path in sorted((ROOT / PACKAGE).rglob("*"))
        if path.is_file() and path.parent.name != "__pycache__" and not path.name.startswith(".")
    ]
    lock = ROOT / "requirements.lock"
    return [*inside, *([lock] if lock.is_file() else [])]


@cache
def _sources() -> bytes:
    """Digest of all files of the package, and of the lock."""
    return digest(
        b"sources", *(part for path in _files() for part in (str(path.relative_to(ROOT)).encode(), read_bytes(path)))
    )


@cache
def _fingerprint(stage: str, _sources: bytes) -> bytes:
    """The walk itself, once a process where nothing is noted."""
    return to_json(fingerprints(ROOT, [stage])[stage])


@cache
def _installed(fingerprint: bytes) -> bytes:
    """Versions that are installed, whatever the lock says."""
    names = sorted(orjson.loads(fingerprint)["libraries"])
    return repr([(name, _version(name)) for name in names]).encode()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
