"""Which rows of earlier builds are kept, and where: a SQLite file that may be lost or damaged at any time, at the price of computing again.

A *segment* is a file with the results of many rows, known by the SHA-256 of its bytes. A *piece* is some rows of a segment, known by a digest
of everything that decides them. The index is trusted in little: each piece carries a seal over its own fields, and a segment is checked
against its name before it is used; one that lies in a build or in DVC's cache is read again for that only when it was written to since.
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
CREATE TABLE IF NOT EXISTS pieces(key BLOB PRIMARY KEY, segment BLOB NOT NULL, at INTEGER NOT NULL, rows INTEGER NOT NULL, seal BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS segments(name BLOB PRIMARY KEY, kind TEXT NOT NULL, bytes INTEGER NOT NULL, md5 TEXT, used REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files(device INTEGER, inode INTEGER, size INTEGER, changed INTEGER, name BLOB NOT NULL, PRIMARY KEY(device, inode)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes(key BLOB PRIMARY KEY, value BLOB NOT NULL, seal BLOB NOT NULL) WITHOUT ROWID;
"""
_AT_ONCE = 500
"""Keys in one query."""
_WAIT = 30.0
"""Seconds for which a write waits for another process's."""
_SEAL = 8


class Piece(NamedTuple):
    """Rows of a segment."""

    segment: bytes
    """SHA-256 of the segment's bytes."""
    at: int
    """First of them: a row of an Arrow segment, a token of a shard."""
    rows: int
    """How many."""


class Stat(NamedTuple):
    """By what a file is known again without reading it, as DVC and git do."""

    device: int
    inode: int
    size: int
    changed: int
    """Nanoseconds since 1970 when its bytes were last written."""

    @classmethod
    def of(cls, path: Path) -> "Stat":
        """Stat of a file.

        Raises:
            OSError: there is none.

        """
        found = path.stat()
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class Segment(NamedTuple):
    """What is known of a segment besides its name."""

    name: bytes
    kind: str
    """Stage that made it."""
    size: int
    """Bytes."""
    md5: str | None
    """Name in DVC's cache, of a segment that is a file of a DVC out."""
    used: float
    """Seconds since 1970 when a build last used it."""


def _seal(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=_SEAL).digest()


class Index:
    """One process's connection. Any number of processes may read and write.

    Raises:
        sqlite3.Error: from every method: the file is damaged, locked or gone. The caller goes on without it.

    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # autocommit; the file holds nothing that cannot be computed, so a power cut may lose its last transactions
        self._db = sqlite3.connect(folder / FILE, timeout=_WAIT, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
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

    def find(self, keys: Sequence[bytes]) -> list[Piece | None]:
        """Piece of each key, or None where there is none, or none whose seal is whole."""
        found: dict[bytes, Piece] = {}
        for start in range(0, len(keys), _AT_ONCE):
            part = keys[start : start + _AT_ONCE]
            query = f"SELECT key, segment, at, rows, seal FROM pieces WHERE key IN ({','.join('?' * len(part))})"  # noqa: S608 - only question marks are put in
            for key, segment, at, rows, seal in self._db.execute(query, part):
                if seal == _seal(key, segment, at, rows):
                    found[key] = Piece(segment, at, rows)
        return [found.get(key) for key in keys]

    def add(self, segment: Segment, pieces: Iterable[tuple[bytes, int, int]]) -> None:
        """Take in a segment with its pieces (key, first row, rows), all or nothing; a key that is there already moves here."""
        rows = [(key, segment.name, at, count, _seal(key, segment.name, at, count)) for key, at, count in pieces]
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO segments VALUES(?, ?, ?, ?, ?)", segment)
            self._db.executemany("INSERT OR REPLACE INTO pieces VALUES(?, ?, ?, ?, ?)", rows)

    def segment(self, name: bytes) -> Segment | None:
        """What is known of a segment."""
        row = self._db.execute("SELECT name, kind, bytes, md5, used FROM segments WHERE name = ?", (name,)).fetchone()
        return None if row is None else Segment(*row)

    def segments(self) -> list[Segment]:
        """All of them, the longest unused first."""
        return [
            Segment(*row)
            for row in self._db.execute("SELECT name, kind, bytes, md5, used FROM segments ORDER BY used, name")
        ]

    def pieces(self) -> dict[str, int]:
        """Number of pieces, by the stage that made them."""
        return dict(
            self._db.execute(
                "SELECT s.kind, count(*) FROM pieces AS p JOIN segments AS s ON s.name = p.segment GROUP BY s.kind"
            )
        )

    def touch(self, names: Iterable[bytes]) -> None:
        """Note that segments were used now."""
        with self._writing():
            self._db.executemany("UPDATE segments SET used = ? WHERE name = ?", [(time.time(), name) for name in names])

    def forget(self, names: Iterable[bytes]) -> None:
        """Drop segments, and pieces that lie in none."""
        with self._writing():
            self._db.executemany("DELETE FROM segments WHERE name = ?", [(name,) for name in names])
            self._db.execute("DELETE FROM pieces WHERE segment NOT IN (SELECT name FROM segments)")
            self._db.execute("DELETE FROM files WHERE name NOT IN (SELECT name FROM segments)")

    def checked(self, stat: Stat) -> bytes | None:
        """SHA-256 that a file had when it was read last, if it has not been written to since."""
        query = "SELECT name FROM files WHERE device = ? AND inode = ? AND size = ? AND changed = ?"
        row = self._db.execute(query, stat).fetchone()
        return None if row is None else row[0]

    def set_checked(self, stat: Stat, name: bytes) -> None:
        """Note the SHA-256 of a file; taken before it was read, so that a write meanwhile shows."""
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO files VALUES(?, ?, ?, ?, ?)", (*stat, name))

    def note(self, key: bytes) -> bytes | None:
        """Give a small value by its key."""
        row = self._db.execute("SELECT value, seal FROM notes WHERE key = ?", (key,)).fetchone()
        return row[0] if row is not None and row[1] == _seal(key, row[0]) else None

    def set_note(self, key: bytes, value: bytes) -> None:
        """Keep a small value."""
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO notes VALUES(?, ?, ?)", (key, value, _seal(key, value)))
