"""Index of the reuse cache: a SQLite file from the keys of results to their positions in segment files.

A *segment* is a file with many results, named by the SHA-256 of its bytes: a shard of hidden states. A *piece* is one
result in a segment, a batch of a shard; its key is a digest of everything that decides it. The index may be lost or
damaged at any time, which costs only computing again. Each piece has a seal over its own fields, and a segment is
checked against its name before use. For that, a file is read again only when it was written to since the last check.
"""

import contextlib
import hashlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

FILE = "index.sqlite"
_TABLES = """
CREATE TABLE IF NOT EXISTS pieces(
    key BLOB PRIMARY KEY, segment BLOB NOT NULL, at INTEGER NOT NULL, rows INTEGER NOT NULL, seal BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS segments(
    name BLOB PRIMARY KEY, kind TEXT NOT NULL, bytes INTEGER NOT NULL, md5 TEXT, used REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files(
    device INTEGER, inode INTEGER, size INTEGER, changed INTEGER, name BLOB NOT NULL, PRIMARY KEY(device, inode)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes(key BLOB PRIMARY KEY, value BLOB NOT NULL, seal BLOB NOT NULL) WITHOUT ROWID;
"""
_KEYS_PER_QUERY = 500
_WAIT_SECONDS = 30.0
"""Time for which a write waits for the write of another process."""
_SEAL_BYTES = 8


class CachedPiece(NamedTuple):
    """Position of one result."""

    segment: bytes
    """SHA-256 of the segment's bytes."""
    at: int
    """First token in the shard."""
    rows: int
    """Number of tokens."""


class Stat(NamedTuple):
    """Identity of a file's content without reading it, as DVC and git use it."""

    device: int
    inode: int
    size: int
    changed: int
    """Nanoseconds since 1970 when its bytes were last written."""

    @classmethod
    def of(cls, path: Path) -> "Stat":
        """Return the stat of a file.

        Raises:
            OSError: there is no such file.

        """
        found = path.stat()
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class SegmentEntry(NamedTuple):
    """One segment file."""

    name: bytes
    kind: str
    """Stage that made it."""
    size: int
    """Bytes."""
    md5: str | None
    """Name in DVC's cache; None for a segment that is not a file of a DVC out."""
    used: float
    """Seconds since 1970 when a build last used it."""


def _seal(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=_SEAL_BYTES).digest()


class Index:
    """Connection of one process; any number of processes may read and write.

    Raises:
        sqlite3.Error: from every method, when the file is damaged, locked or gone. The caller goes on without it.

    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # autocommit; the file holds nothing that cannot be computed, so a power cut may lose its last transactions
        self._db = sqlite3.connect(folder / FILE, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def find(self, keys: Sequence[bytes]) -> list[CachedPiece | None]:
        """Return the piece of each key; None where there is none, or its seal is broken."""
        found: dict[bytes, CachedPiece] = {}
        for start in range(0, len(keys), _KEYS_PER_QUERY):
            part = keys[start : start + _KEYS_PER_QUERY]
            marks = ",".join("?" * len(part))
            query = f"SELECT key, segment, at, rows, seal FROM pieces WHERE key IN ({marks})"  # noqa: S608 - only marks
            for key, segment, at, rows, seal in self._db.execute(query, part):
                if seal == _seal(key, segment, at, rows):
                    found[key] = CachedPiece(segment, at, rows)
        return [found.get(key) for key in keys]

    def add(self, segment: SegmentEntry, pieces: Iterable[tuple[bytes, int, int]]) -> None:
        """Add a segment with its pieces (key, first token, tokens), all or none; a known key moves to this segment."""
        rows = [(key, segment.name, at, count, _seal(key, segment.name, at, count)) for key, at, count in pieces]
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO segments VALUES(?, ?, ?, ?, ?)", segment)
            self._db.executemany("INSERT OR REPLACE INTO pieces VALUES(?, ?, ?, ?, ?)", rows)

    def segment(self, name: bytes) -> SegmentEntry | None:
        """Return a segment by its name, or None."""
        row = self._db.execute("SELECT name, kind, bytes, md5, used FROM segments WHERE name = ?", (name,)).fetchone()
        return None if row is None else SegmentEntry(*row)

    def segments(self) -> list[SegmentEntry]:
        """Return all segments, the longest unused first."""
        return [
            SegmentEntry(*row)
            for row in self._db.execute("SELECT name, kind, bytes, md5, used FROM segments ORDER BY used, name")
        ]

    def pieces(self) -> dict[str, int]:
        """Return the number of pieces by the stage that made them."""
        return dict(
            self._db.execute(
                "SELECT s.kind, count(*) FROM pieces AS p JOIN segments AS s ON s.name = p.segment GROUP BY s.kind"
            )
        )

    def touch(self, names: Iterable[bytes]) -> None:
        """Record that segments were used now."""
        with self._writing():
            now = time.time()
            self._db.executemany("UPDATE segments SET used = ? WHERE name = ?", [(now, name) for name in names])

    def forget(self, names: Iterable[bytes]) -> None:
        """Drop segments, and the pieces and files that belong to no segment any more."""
        with self._writing():
            self._db.executemany("DELETE FROM segments WHERE name = ?", [(name,) for name in names])
            self._db.execute("DELETE FROM pieces WHERE segment NOT IN (SELECT name FROM segments)")
            self._db.execute("DELETE FROM files WHERE name NOT IN (SELECT name FROM segments)")

    def checked(self, stat: Stat) -> bytes | None:
        """Return the SHA-256 of a file as it was last read, or None when it was written to since."""
        query = "SELECT name FROM files WHERE device = ? AND inode = ? AND size = ? AND changed = ?"
        row = self._db.execute(query, stat).fetchone()
        return None if row is None else row[0]

    def set_checked(self, stat: Stat, name: bytes) -> None:
        """Record the SHA-256 of a file; take ``stat`` before reading it, so that a write meanwhile shows."""
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO files VALUES(?, ?, ?, ?, ?)", (*stat, name))

    def note(self, key: bytes) -> bytes | None:
        """Return a small value by its key; None when there is none, or its seal is broken."""
        row = self._db.execute("SELECT value, seal FROM notes WHERE key = ?", (key,)).fetchone()
        return row[0] if row is not None and row[1] == _seal(key, row[0]) else None

    def set_note(self, key: bytes, value: bytes) -> None:
        """Store a small value."""
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO notes VALUES(?, ?, ?)", (key, value, _seal(key, value)))
