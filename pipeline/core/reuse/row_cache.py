"""What earlier builds computed, by content: found, checked, taken, added. Nothing of it shows in a result; without it everything is computed.

It lies in the clone's shared folder (pipeline/core/home.py), never in an out of DVC, which deletes outs before a stage runs again.
"""

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pipeline.core.dvc_cache import cached_paths
from pipeline.core.errors import AerieError, ConfigError
from pipeline.core.files import digests_of_file, read_bytes, sha256_file, write_bytes
from pipeline.core.home import shared_folder
from pipeline.core.process.runner import tell
from pipeline.core.reuse.code import code_digest, digest, edited_meanwhile
from pipeline.core.reuse.index import FILE, Index, Piece, Segment, Stat

VARIABLE = "AERIE_REUSE"
"""Environment variable: `off`, or the most bytes to keep (`500MB`, `20GiB`)."""
FOLDER = "rows"
DEFAULT_BYTES = 8 << 30

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)
_LEFTOVER_SECONDS = 86400.0
"""Age from which a file that the index does not know is taken for one that a killed run left."""
_FORGOTTEN_SECONDS = 180 * 86400.0
"""Time without use after which an entry goes whose file is held elsewhere, or nowhere."""

Value = TypeVar("Value")


def most_bytes() -> int:
    """Bytes to keep at most; 0 for off.

    Raises:
        ConfigError: the environment variable is neither a size nor `off`.

    """
    said = os.environ.get(VARIABLE, "").strip()
    if not said:
        return DEFAULT_BYTES
    if said.lower() in ("off", "no", "false"):
        return 0
    if (match := _SIZE.fullmatch(said)) is None:
        raise ConfigError(f"{VARIABLE}={said!r}: needs `off`, or the most bytes to keep, such as 500MB or 20GiB")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


class Kept:
    """What one stage may take from earlier builds, and adds to. Every method works, and finds nothing, when reuse is off or broken."""

    def __init__(self, kind: str, folder: Path | None, limit: int) -> None:
        self.kind = kind
        self.folder = folder
        self.limit = limit
        self.salt = b""
        self.hits = self.misses = 0
        self._index: Index | None = None
        self._used: set[bytes] = set()
        self._damaged: set[bytes] = set()
        self._added = False
        if folder is not None and limit > 0:
            self._index = self._open(folder)

    @property
    def on(self) -> bool:
        """Whether anything can be found."""
        return self._index is not None

    def key(self, *parts: bytes) -> bytes:
        """Digest of what decides a result: the stage's code and settings, and these parts."""
        return digest(self.salt, *parts)

    def find(self, keys: Sequence[bytes]) -> list[Piece | None]:
        """Where each result lies, if it is kept. The segment is still to be read, and may turn out to be gone."""
        return self._guarded(lambda index: index.find(keys)) or [None] * len(keys)

    def data(self, name: bytes) -> bytes | None:
        """Give a segment's bytes, checked, or None when they are gone or damaged."""
        if name in self._damaged or self.folder is None:
            return None
        try:
            found = read_bytes(self._path(name))
        except AerieError:
            found = b""
        if digest(found) != name:
            self.reject(name)
            return None
        self._used.add(name)
        return found

    def file(self, name: bytes) -> Path | None:
        """Path of a segment, here or in DVC's cache, its bytes checked; None when it is gone or damaged.

        Hidden states are large, so a file that was checked is read again only when its stat says that it was written to: hashing all of
        them would cost more than what an increment computes.
        """
        if name in self._damaged or self.folder is None:
            return None
        known = self._guarded(lambda index: index.segment(name))
        places: list[Path] = [
            self._path(name),
            *(cached_paths(known.md5, self._root) if known is not None and known.md5 else ()),
        ]
        for path in places:
            with contextlib.suppress(AerieError, OSError):
                if path.is_file() and self._sha256(path) == name:
                    self._used.add(name)
                    return path
        self._damaged.add(name)  # here and now: another work tree's DVC cache may have it, so the entry stays
        with contextlib.suppress(OSError):
            self._path(name).unlink(missing_ok=True)
        return None

    def reject(self, name: bytes) -> None:
        """Do not use a segment again: it is gone, or not what it should be."""
        self._damaged.add(name)
        self._used.discard(name)
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self._path(name).unlink(missing_ok=True)
            self._guarded(lambda index: index.forget([name]))

    def add(self, data: bytes, pieces: Iterable[tuple[bytes, int, int]]) -> None:
        """Keep a segment and its pieces (key, first row, rows)."""
        if self._index is None:
            return
        name = digest(data)
        self._guarded(
            lambda index: self._add(index, name, len(data), None, pieces, lambda path: write_bytes(path, data))
        )

    def add_file(self, path: Path, pieces: Iterable[tuple[bytes, int, int]]) -> str:
        """Keep a finished file of an out of DVC as a segment; return its SHA-256 in hex.

        Where DVC runs the stage it keeps the file itself, and its MD5 finds it there: no second copy. Else the file gets a second name.
        """
        if self._index is None:
            return sha256_file(path)
        stat = Stat.of(path)
        sha256, md5 = digests_of_file(path, "sha256", "md5")
        self._guarded(lambda index: index.set_checked(stat, bytes.fromhex(sha256)))
        make = _leave_to_dvc if "DVC_ROOT" in os.environ else lambda to: link_or_copy(path, to)
        self._guarded(lambda index: self._add(index, bytes.fromhex(sha256), path.stat().st_size, md5, pieces, make))
        return sha256

    def adopt(self, path: Path) -> None:
        """Keep a file that a killed run had finished, and that nobody else will keep, if its pieces are known."""
        with contextlib.suppress(OSError, AerieError):
            name = self._sha256(path) if self._index is not None else b""
            if name and self._guarded(lambda index: index.segment(name)) is not None:
                link_or_copy(path, self._path(name))
                self._added = True

    def note(self, key: bytes) -> bytes | None:
        """Give a small value of an earlier run."""
        return self._guarded(lambda index: index.note(key))

    def set_note(self, key: bytes, value: bytes) -> None:
        """Keep a small value."""
        self._guarded(lambda index: index.set_note(key, value))

    def close(self) -> None:
        """Note what was used, drop what is too much."""
        if self._used:
            self._guarded(lambda index: index.touch(self._used))
        if self._added:
            self._guarded(lambda index: collect(index, self._root, self.limit))
        if self._index is not None:
            self._index.close()
            self._index = None

    @property
    def _root(self) -> Path:
        assert self.folder is not None
        return self.folder

    def _sha256(self, path: Path) -> bytes:
        """SHA-256 of a file, without reading it when it was read before and not written to since."""
        stat = Stat.of(path)
        known = self._guarded(lambda index: index.checked(stat))
        if known is None:
            known = bytes.fromhex(sha256_file(path))
            self._guarded(lambda index: index.set_checked(stat, known))
        return known

    def _path(self, name: bytes) -> Path:
        return segment_path(self._root, name)

    def _add(
        self,
        index: Index,
        name: bytes,
        size: int,
        md5: str | None,
        pieces: Iterable[tuple[bytes, int, int]],
        make: Callable[[Path], None],
    ) -> None:
        """Make the file first, then the entry: what a crash leaves between is a file that nobody knows."""
        path = self._path(name)
        if not path.is_file() or name in self._damaged:
            make(path)
        self._damaged.discard(name)
        index.add(Segment(name, self.kind, size, md5, time.time()), pieces)
        self._added = True

    def _open(self, folder: Path) -> Index | None:
        for _ in range(2):  # the first try may find a damaged index, and remove it
            try:
                return Index(folder)
            except (sqlite3.Error, OSError) as error:
                if not self._failed(error):
                    return None
        return None

    def _guarded(self, work: Callable[[Index], Value]) -> Value | None:
        """Do something with the index; a failure switches reuse off for the rest of this run."""
        if self._index is None:
            return None
        try:
            return work(self._index)
        except (sqlite3.Error, OSError, AerieError) as error:
            with contextlib.suppress(sqlite3.Error):
                self._index.close()
            self._index = None
            self._failed(error)
            return None

    def _failed(self, error: Exception) -> bool:
        """Say so, and remove an index that is no database or a damaged one; return whether it was that."""
        tell(f"{self.kind}: rows of earlier builds are computed again: {self.folder}: {error}")
        damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        try:
            for path in self._root.glob(f"{FILE}*") if damaged else ():
                path.unlink(missing_ok=True)
        except OSError:
            return False
        return damaged


@contextlib.contextmanager
def opened(kind: str, *decides: bytes) -> Iterator[Kept]:
    """Give what is kept for a stage; ``decides`` is what besides a row's own content and the stage's code decides its result.

    Raises:
        ConfigError: AERIE_REUSE is no size, or the stage's code has no fingerprint.

    """
    limit = most_bytes()
    home = shared_folder() if limit and not edited_meanwhile() else None
    kept = Kept(kind, None if home is None else home / FOLDER, limit)
    try:
        if kept.on:
            kept.salt = digest(kind.encode(), code_digest(kind, kept), *decides)
        yield kept
    finally:
        kept.close()


def segment_path(folder: Path, name: bytes) -> Path:
    """Where a segment lies."""
    text = name.hex()
    return folder / text[:2] / text[2:]


def _leave_to_dvc(_path: Path) -> None:
    """Keep no file: DVC will."""


def link_or_copy(source: Path, to: Path) -> None:
    """Give a file a second name, or copy it where that cannot be.

    Raises:
        DiskError: there is no room.

    """
    to.parent.mkdir(parents=True, exist_ok=True)
    temporary = to.with_name(f".{to.name}.{os.getpid()}.partial")
    try:
        temporary.unlink(missing_ok=True)
        os.link(source, temporary)
        temporary.replace(to)
    except OSError:
        write_bytes(to, read_bytes(source))


def own_bytes(path: Path) -> int:
    """Bytes that only this name holds: none for a file that is a link to one of a build or of DVC's cache, or is gone."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return found.st_size if found.st_nlink == 1 else 0


def collect(index: Index, folder: Path, limit: int) -> int:
    """Drop the longest unused segments until the rest fits ``limit``; files that DVC holds as well go at once. Return the bytes freed."""
    held = [(segment, own_bytes(segment_path(folder, segment.name))) for segment in index.segments()]
    total, freed, gone = sum(size for _, size in held), 0, []
    for segment, size in held:
        if (
            size
            and segment.md5
            and any(path.stat().st_size == segment.size for path in cached_paths(segment.md5, folder))
        ):
            segment_path(folder, segment.name).unlink(missing_ok=True)  # DVC's is enough; the entry stays
            total, freed = total - size, freed + size
        elif size and total > limit:
            segment_path(folder, segment.name).unlink(missing_ok=True)
            gone.append(segment.name)
            total, freed = total - size, freed + size
        elif not size and time.time() - segment.used > _FORGOTTEN_SECONDS:
            gone.append(segment.name)
    if gone:
        index.forget(gone)
    _remove_strangers(index, folder)
    return freed


def _remove_strangers(index: Index, folder: Path) -> None:
    """Remove files that no entry knows, once they are too old to be another process's work in progress."""
    known = {segment_path(folder, segment.name) for segment in index.segments()}
    for path in folder.glob("??/*"):
        with contextlib.suppress(OSError):
            if path not in known and time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                path.unlink()
