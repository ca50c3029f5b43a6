"""`store gc`: drop bodies that are not needed any more, and shrink the file.

Rows of requests and results always stay: they are the account of what was spent.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.errors import ArtifactError, DiskError
from pipeline.core.files.jsonl import read_jsonl
from pipeline.stages.generate.ledger.connection import FILE, is_full, transaction

_OLD_FAILURES = """SELECT result FROM attempts
WHERE state IN ('failed', 'uncertain', 'spoilt') AND coalesce(sent_at, 0) < :before"""

_UNLISTED = """SELECT r.id FROM results AS r JOIN requests AS q ON q.id = r.attempt
WHERE r.state IN ('answer', 'restored') AND q.key NOT IN (SELECT key FROM listed)"""


def drop_failures(db: sqlite3.Connection, *, before: float) -> int:
    """Drop the bodies of failures sent ``before`` a time (seconds since the epoch); return their number.

    An answer that cannot be used may be asked for again afterwards.
    """
    values = {"before": before}
    with transaction(db):
        dropped = db.execute(f"DELETE FROM bodies WHERE id IN ({_OLD_FAILURES})", values).rowcount  # noqa: S608
        db.execute(
            f"UPDATE results SET state='dropped' WHERE state='spoilt' AND id IN ({_OLD_FAILURES})",  # noqa: S608
            values,
        )
    return dropped


@contextmanager
def listed_keys(db: sqlite3.Connection, files: Iterable[Path]) -> Iterator[None]:
    """Put the keys of some responses.jsonl into a temporary table for the block; the two functions below read it.

    Raises:
        InputError: a responses.jsonl is missing or damaged.
        ArtifactError: a responses.jsonl has a row without a key.

    """
    db.execute("CREATE TEMP TABLE listed(key TEXT PRIMARY KEY) WITHOUT ROWID")
    try:
        for path in files:
            for number, row in read_jsonl(path):
                if not isinstance(row, dict) or not isinstance(row.get("key"), str):
                    raise ArtifactError(
                        f"{path}:{number}: not a row of responses.jsonl: it has no key; nothing was dropped"
                    )
                db.execute("INSERT OR IGNORE INTO listed VALUES(?)", (row["key"],))
        yield
    finally:
        db.execute("DROP TABLE listed")


def unlisted_answers(db: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of answers without a listed key, and the picodollars that they cost."""
    count, pico = db.execute(
        f"SELECT count(*), coalesce(sum(cost_pico), 0) FROM results WHERE id IN ({_UNLISTED})"  # noqa: S608
    ).fetchone()
    return count, pico


def drop_unlisted(db: sqlite3.Connection) -> None:
    """Drop every answer without a listed key; it would have to be paid for again."""
    with transaction(db):
        db.execute(f"DELETE FROM bodies WHERE id IN ({_UNLISTED})")  # noqa: S608
        db.execute(f"UPDATE results SET state='dropped' WHERE id IN ({_UNLISTED})")  # noqa: S608


def shrink(db: sqlite3.Connection) -> None:
    """Give the space of what was dropped back to the disk.

    Raises:
        DiskError: there is no room to write the file anew.

    """
    db.execute("PRAGMA temp_store=FILE")  # the copy may be larger than the memory
    try:
        db.execute("VACUUM")
    except sqlite3.OperationalError as error:
        if not is_full(error):
            raise
        raise DiskError(
            f"the bodies are dropped, and later answers take their place, but {FILE} cannot be made smaller: SQLite "
            f"writes it anew, first in the folder for temporary files (SQLITE_TMPDIR or TMPDIR), then beside it "
            f"({error}); free some space and run again"
        ) from error
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
