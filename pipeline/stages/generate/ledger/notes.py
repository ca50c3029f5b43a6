"""Notes beside the account: runs, written files, lists of endpoints.

They only save later runs some work. A full disk must not keep the answers from being written out, so a note that does
not fit is left out without an error.
"""

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson


def start_run(db: sqlite3.Connection, dataset: str, model: str) -> int:
    """Enter a run that starts now; return its id."""
    row = db.execute(
        "INSERT INTO runs(dataset, provider, started_at) VALUES(?, ?, ?) RETURNING id", (dataset, model, time.time())
    ).fetchone()
    return int(row[0])


def end_run(db: sqlite3.Connection, run: int) -> None:
    """Note that a run ends now."""
    _keep(db, "UPDATE runs SET ended_at=:now WHERE id=:run", {"now": time.time(), "run": run})


class WrittenFile(NamedTuple):
    """A row of `projections`: a file that the stage wrote from the ledger."""

    path: str
    plan: str
    """Digest of everything that decides the file's content."""
    stat: str
    """Size, modification time and inode when it was written."""
    sha256: str
    summary: bytes
    """Content of the summary file that belongs to it."""


_COLUMNS = ", ".join(WrittenFile._fields)


def remember_file(db: sqlite3.Connection, file: WrittenFile) -> None:
    """Note a file that was just written."""
    marks = ", ".join(f":{field}" for field in WrittenFile._fields)
    _keep(db, f"INSERT OR REPLACE INTO projections({_COLUMNS}) VALUES({marks})", file._asdict())


def remember_stat(db: sqlite3.Connection, path: Path, stat: str) -> None:
    """Note a new stat of a file whose bytes are as they were written."""
    _keep(db, "UPDATE projections SET stat=:stat WHERE path=:path", {"stat": stat, "path": str(path.absolute())})


def written_file(db: sqlite3.Connection, path: Path) -> WrittenFile | None:
    """Return the note of a file, or None when this ledger did not write it."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM projections WHERE path=?",  # noqa: S608
        (str(path.absolute()),),
    ).fetchone()
    return None if row is None else WrittenFile._make(row)


def forget_plans(db: sqlite3.Connection) -> None:
    """Make the next run of each dataset write its files again: their summaries name money that has changed."""
    db.execute("UPDATE projections SET plan=''")


def remember_endpoints(db: sqlite3.Connection, server: str, document: Any) -> None:
    """Note a server's list of endpoints."""
    _keep(
        db,
        "INSERT OR REPLACE INTO endpoints(server, document, fetched_at) VALUES(:server, :document, :now)",
        {"server": server, "document": orjson.dumps(document), "now": time.time()},
    )


def remembered_endpoints(db: sqlite3.Connection, server: str) -> Any:
    """Return a server's list of endpoints as it was last fetched, or None."""
    row = db.execute("SELECT document FROM endpoints WHERE server=?", (server,)).fetchone()
    return None if row is None else orjson.loads(row[0])


def _keep(db: sqlite3.Connection, statement: str, values: dict[str, Any]) -> None:
    with contextlib.suppress(sqlite3.OperationalError):
        db.execute(statement, values)
