"""The ledger's SQLite file: opened, brought up to date, and its errors explained.

The ledger holds every request that may cost money, and every answer. A request's row, with the most that it can cost,
is on the disk before the request is sent; an answer's bytes are on the disk before its row counts as done. One process
writes (`lock.only_writer`), through one thread (`writer.Writer`); any process may read.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.core.errors import ArtifactError, BusyError, DiskError
from pipeline.core.home import STORE_VARIABLE
from pipeline.stages.generate.ledger import migrations
from pipeline.stages.generate.ledger.lock import only_writer

FILE = "ledger.sqlite"

_SETTINGS = (
    "PRAGMA page_size=16384",  # for a new file; each page costs two system calls, and an answer takes some 10 KiB
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # with NORMAL, a power cut could undo a commit that a request relied on
    "PRAGMA wal_autocheckpoint=2000",  # 32 MiB of such pages: a page that many rows share is copied back only once
    "PRAGMA cache_size=-16384",  # 16 MiB: keys are looked up in random order, so their index must stay in memory
    "PRAGMA temp_store=MEMORY",  # so that a full disk for temporary files does not stop a commit
)


def connect(folder: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Open the ledger, and bring an older one up to date; without ``readonly``, create it where it is missing.

    The caller must hold `lock.only_writer` unless it opens the ledger ``readonly``.

    Raises:
        ArtifactError: the file is damaged or of another version, or there is none to read.
        DiskError: the file cannot be created or opened.
        BusyError: the file is of an older version, and a running generator uses it.

    """
    path = folder / FILE
    if readonly and not path.exists():
        raise missing_ledger(path)
    try:
        try:
            db = _open(path)
        except sqlite3.OperationalError as error:
            if is_full(error):
                # without a shared-memory file, for which the disk has no room: enough for reading
                db = _open(path, "PRAGMA locking_mode=EXCLUSIVE")
            elif readonly and not os.access(folder, os.W_OK) and not path.with_name(f"{FILE}-wal").exists():
                db = _open(path, options="?immutable=1")  # the folder is read-only, and nobody is writing to the ledger
            else:
                raise
        if (version := migrations.version_of(db)) != migrations.VERSION:
            _upgrade(db, folder, version, alone=not readonly)
    except sqlite3.Error as error:
        raise ledger_error(path, error, opening=True) from error
    return db


def _open(path: Path, *first: str, options: str = "") -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}{options}", timeout=60, isolation_level=None, check_same_thread=False, uri=True
    )
    try:
        for setting in (*first, *_SETTINGS):
            db.execute(setting)
    except BaseException:
        db.close()
        raise
    return db


def missing_ledger(path: Path) -> ArtifactError:
    """Return the error for a command that needs a ledger and does not create one."""
    return ArtifactError(f"{path}: there is no ledger yet; `python -m pipeline generate DATASET` creates it")


def _upgrade(db: sqlite3.Connection, folder: Path, version: int, *, alone: bool) -> None:
    path = folder / FILE
    if version == migrations.EMPTY and not alone:
        raise missing_ledger(path)
    if not migrations.upgradable(version):
        raise ArtifactError(
            f"{path}: schema {version}, this code reads {migrations.VERSION}; run `store export` with the code that "
            "wrote it, or move the file away"
        )
    if alone:
        migrations.upgrade(db)
        return
    try:
        with only_writer(folder, wait=False, say=print):
            migrations.upgrade(db)
    except BusyError as error:
        raise BusyError(
            f"{path}: schema {version}, this code reads {migrations.VERSION} and cannot bring it up to date now: "
            f"{error}"
        ) from None


@contextlib.contextmanager
def opened(folder: Path, *, readonly: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the ledger for the block.

    Raises:
        ArtifactError, DiskError: as `connect`; or a query inside the block met a damaged file or a full disk.

    """
    db = connect(folder, readonly=readonly)
    try:
        yield db
    except sqlite3.Error as error:
        raise ledger_error(folder / FILE, error) from error
    finally:
        db.close()


@contextlib.contextmanager
def opened_or_empty(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the ledger for reading; where there is none, give an empty one that is never written to a disk.

    Raises:
        ArtifactError, DiskError: as `opened`.

    """
    with opened(folder, readonly=True) if (folder / FILE).exists() else empty() as db:
        yield db


@contextlib.contextmanager
def empty() -> Iterator[sqlite3.Connection]:
    """Give an empty ledger in memory for the block."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        migrations.upgrade(db)
        yield db
    finally:
        db.close()


@contextlib.contextmanager
def opened_alone(folder: Path, *, say: Callable[[str], None]) -> Iterator[sqlite3.Connection]:
    """Open an existing ledger for changes, as its only writer.

    Raises:
        ArtifactError, DiskError: as `opened`.
        BusyError: a generator holds the ledger.

    """
    if not (path := folder / FILE).exists():
        raise missing_ledger(path)
    with only_writer(folder, wait=False, say=say), opened(folder) as db:
        yield db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit everything in the block at once, or nothing of it."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite has already rolled back when the disk is full
            db.execute("ROLLBACK")
        raise


_MOVE_ASIDE = (
    f"move it aside with its {FILE}-wal and {FILE}-shm, and run again: the answers in each "
    "build/<dataset>/responses.jsonl are taken from there, and only the rest is asked and paid for again"
)


def ledger_error(path: Path, error: sqlite3.Error, *, opening: bool = False) -> ArtifactError | DiskError:
    """Turn an SQLite error into one that says what the user can do."""
    if isinstance(error, sqlite3.OperationalError):
        return DiskError(
            f"{path}: the ledger cannot be {'opened' if opening else 'written'} ({error}); {_remedy(path, error)}; "
            "all answers so far are kept"
        )
    if opening:
        return ArtifactError(f"{path}: the file is not a ledger, or is damaged ({error}); {_MOVE_ASIDE}")
    return ArtifactError(
        f"{path}: the ledger is damaged ({error}); save its answers with `python -m pipeline store export --out FILE`, "
        f"and take them back later with `store import FILE`; {_MOVE_ASIDE}"
    )


def _remedy(path: Path, error: sqlite3.Error) -> str:
    if is_full(error):
        return f"{shutil.disk_usage(path.parent).free:,} bytes are left on its disk: free some space and run again"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another process holds it: wait until that process ends, and run again"
    return (
        f"check that you may write to {path.parent} and its files, or set {STORE_VARIABLE} to a folder where you may, "
        "and run again"
    )


def is_full(error: sqlite3.Error) -> bool:
    """Return whether the error says that the disk is full; some file systems report that as an input/output error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
