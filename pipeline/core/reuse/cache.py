"""Reuse cache: results of earlier builds, found by the digest of everything that decides them.

Results never depend on it: what is missing or damaged is computed again. It lies in the clone's shared folder
(pipeline/core/home.py) and not in an out of DVC, because DVC deletes outs before a stage runs again.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pipeline.core.dvc_cache import cached_paths
from pipeline.core.errors import AerieError
from pipeline.core.files.digests import digests_of_file, sha256_file
from pipeline.core.home import shared_folder
from pipeline.core.process.messages import tell
from pipeline.core.reuse.code_digest import code_digest, digest, edited_meanwhile
from pipeline.core.reuse.eviction import collect
from pipeline.core.reuse.index import FILE, CachedPiece, Index, SegmentEntry, Stat
from pipeline.core.reuse.limit import most_bytes
from pipeline.core.reuse.segment_files import FOLDER, link_or_copy, segment_path

Value = TypeVar("Value")


class ReuseCache:
    """Results of earlier builds for one stage, in ``folder``, of at most ``limit`` bytes.

    When reuse is off (a ``limit`` of 0) or the index is broken, every method works and finds nothing, so a caller needs
    no second path.
    """

    def __init__(self, kind: str, folder: Path, limit: int) -> None:
        self.kind = kind
        self.folder = folder
        self.limit = limit
        self.salt = b""
        self._used: set[bytes] = set()
        self._damaged: set[bytes] = set()
        self._added = False
        self._index = self._open() if limit > 0 else None

    @property
    def on(self) -> bool:
        """Whether anything can be found."""
        return self._index is not None

    def key(self, *parts: bytes) -> bytes:
        """Return the key of a result: the digest of the stage's code and settings and of these parts."""
        return digest(self.salt, *parts)

    def find(self, keys: Sequence[bytes]) -> list[CachedPiece | None]:
        """Return the position of each result, or None. Its segment is not read yet, and may be gone."""
        return self._guarded(lambda index: index.find(keys)) or [None] * len(keys)

    def file(self, name: bytes) -> Path | None:
        """Return the checked path of a segment, here or in DVC's cache; None when it is gone or damaged.

        A file that was checked before is read again only when its stat shows that it was written to since: hidden
        states are large, and hashing all of them would cost more than what an incremental build computes.
        """
        if name in self._damaged:
            return None
        segment = self._guarded(lambda index: index.segment(name))
        candidates: list[Path] = [
            self._path(name),
            *(cached_paths(segment.md5, self.folder) if segment is not None and segment.md5 else ()),
        ]
        for path in candidates:
            with contextlib.suppress(AerieError, OSError):
                if path.is_file() and self._sha256(path) == name:
                    self._used.add(name)
                    return path
        # only for this run: the DVC cache of another work tree may have the file, so the entry stays
        self._damaged.add(name)
        with contextlib.suppress(OSError):
            self._path(name).unlink(missing_ok=True)
        return None

    def add_file(self, path: Path, pieces: Iterable[tuple[bytes, int, int]]) -> str:
        """Keep a finished file of a DVC out with its pieces (key, first token, tokens); return its hex SHA-256.

        When DVC runs the stage, DVC keeps the file and its MD5 finds it there, so no second copy is made. Otherwise the
        file gets a second name in the cache.
        """
        if self._index is None:
            return sha256_file(path)
        stat = Stat.of(path)
        sha256, md5 = digests_of_file(path, "sha256", "md5")
        self._guarded(lambda index: index.set_checked(stat, bytes.fromhex(sha256)))
        store = _leave_to_dvc if "DVC_ROOT" in os.environ else lambda target: link_or_copy(path, target)
        self._guarded(lambda index: self._add(index, bytes.fromhex(sha256), path.stat().st_size, md5, pieces, store))
        return sha256

    def adopt(self, path: Path) -> None:
        """Keep a file that a killed run had finished and DVC never saw, if its pieces are known."""
        with contextlib.suppress(OSError, AerieError):
            name = self._sha256(path) if self._index is not None else b""
            if name and self._guarded(lambda index: index.segment(name)) is not None:
                link_or_copy(path, self._path(name))
                self._added = True

    def note(self, key: bytes) -> bytes | None:
        """Return a small value of an earlier run, or None."""
        return self._guarded(lambda index: index.note(key))

    def set_note(self, key: bytes, value: bytes) -> None:
        """Store a small value for later runs."""
        self._guarded(lambda index: index.set_note(key, value))

    def close(self) -> None:
        """Record the use of segments, and evict what exceeds the limit."""
        if self._used:
            self._guarded(lambda index: index.touch(self._used))
        if self._added:
            self._guarded(lambda index: collect(index, self.folder, self.limit))
        if self._index is not None:
            self._index.close()
            self._index = None

    def _sha256(self, path: Path) -> bytes:
        """Return the SHA-256 of a file, from the index when the file was not written to since it was last read."""
        stat = Stat.of(path)
        name = self._guarded(lambda index: index.checked(stat))
        if name is None:
            name = bytes.fromhex(sha256_file(path))
            self._guarded(lambda index: index.set_checked(stat, name))
        return name

    def _path(self, name: bytes) -> Path:
        return segment_path(self.folder, name)

    def _add(
        self,
        index: Index,
        name: bytes,
        size: int,
        md5: str | None,
        pieces: Iterable[tuple[bytes, int, int]],
        store: Callable[[Path], None],
    ) -> None:
        """Store the file first and the entry second: a crash in between leaves only a file that nobody refers to."""
        path = self._path(name)
        if not path.is_file() or name in self._damaged:
            store(path)
        self._damaged.discard(name)
        index.add(SegmentEntry(name, self.kind, size, md5, time.time()), pieces)
        self._added = True

    def _open(self) -> Index | None:
        for _ in range(2):  # the first try may find a damaged index, and removes it
            try:
                return Index(self.folder)
            except (sqlite3.Error, OSError) as error:
                if not self._report(error):
                    return None
        return None

    def _guarded(self, work: Callable[[Index], Value]) -> Value | None:
        """Use the index; a failure switches reuse off for the rest of this run."""
        if self._index is None:
            return None
        try:
            return work(self._index)
        except (sqlite3.Error, OSError, AerieError) as error:
            with contextlib.suppress(sqlite3.Error):
                self._index.close()
            self._index = None
            self._report(error)
            return None

    def _report(self, error: Exception) -> bool:
        """Tell the user, and remove an index that is damaged or not a database; return whether it was removed."""
        tell(f"{self.kind}: results of earlier builds are computed again: {self.folder}: {error}")
        damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        try:
            for path in self.folder.glob(f"{FILE}*") if damaged else ():
                path.unlink(missing_ok=True)
        except OSError:
            return False
        return damaged


@contextlib.contextmanager
def open_cache(kind: str, *inputs: bytes) -> Iterator[ReuseCache]:
    """Open the reuse cache of a stage.

    ``inputs`` are what decides a result besides its own key parts and the stage's code. The cache stays empty when
    reuse is off, when a source was edited after this process began, and outside a git repository.

    Raises:
        ConfigError: AERIE_REUSE is not a size, or the stage's code has no fingerprint.

    """
    limit = most_bytes()
    home = shared_folder() if limit and not edited_meanwhile() else None
    cache = ReuseCache(kind, home / FOLDER, limit) if home is not None else ReuseCache(kind, Path(os.devnull), 0)
    try:
        if cache.on:
            cache.salt = digest(kind.encode(), code_digest(kind, cache), *inputs)
        yield cache
    finally:
        cache.close()


def _leave_to_dvc(_path: Path) -> None:
    """Store no file: DVC keeps it."""
