"""The ledger: every request that may cost money, and every answer, in SQLite.

A request's row, with the most that it can cost, is on the disk before the request is sent; an answer's bytes are on the
disk before the row counts as done. One process writes (`home.only_writer`), through one thread (`writer.Writer`); any
process may read. Money is in picodollars.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ArtifactError, DiskError

SCHEMA_VERSION = 1
FILE = "ledger.sqlite"

_TABLES = """
CREATE TABLE runs(id INTEGER PRIMARY KEY, dataset TEXT NOT NULL, provider TEXT NOT NULL, started_at REAL NOT NULL, ended_at REAL);
CREATE TABLE attempts(
  id INTEGER PRIMARY KEY, key TEXT NOT NULL, dataset TEXT NOT NULL, purse TEXT NOT NULL, run INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state IN ('sent', 'answer', 'failed', 'uncertain', 'restored')),
  requests INTEGER NOT NULL DEFAULT 1,
  charge_pico INTEGER NOT NULL, charge_tokens INTEGER NOT NULL,
  cost_pico INTEGER, prompt_tokens INTEGER, completion_tokens INTEGER,
  kind TEXT, message TEXT, status INTEGER, provider TEXT, model TEXT, policy TEXT,
  sent_at REAL, seconds REAL);
CREATE INDEX attempts_by_key ON attempts(key, id);
CREATE TABLE bodies(attempt INTEGER PRIMARY KEY, sha256 BLOB NOT NULL, body BLOB NOT NULL);
CREATE TABLE answers(key TEXT PRIMARY KEY, attempt INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE projections(path TEXT PRIMARY KEY, plan TEXT NOT NULL, stat TEXT NOT NULL, sha256 TEXT NOT NULL, summary BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE endpoints(server TEXT PRIMARY KEY, document BLOB NOT NULL, fetched_at REAL NOT NULL) WITHOUT ROWID;
"""
# charge_*: what the row counts against the caps: at first the most it can cost, then the real cost, or still the most when that is unknown.
# requests: how many requests the row stands for; more than 1 only for an answer restored from another clone's responses.jsonl.


@dataclass(frozen=True, slots=True)
class Attempt:
    """The last request for a key, as the projection needs it."""

    id: int
    state: str
    kind: str | None
    message: str | None
    provider: str | None
    model: str | None
    policy: str | None
    body: bytes | None
    requests: int
    """Requests for the key, over all runs."""
    cost_pico: int
    """Known cost of the key, over all runs."""
    uncertain: int
    """Requests of unknown cost for the key."""
    uncertain_pico: int
    """Most that those can have cost."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    sent_at: float | None = None
    seconds: float | None = None

    @property
    def answered(self) -> bool:
        """Whether this is the key's answer, and not its last failure."""
        return self.state in ("answer", "restored")


@dataclass(frozen=True, slots=True)
class Spending:
    """What counts against a cap."""

    pico: int
    tokens: int


def connect(folder: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Open the ledger, and make it if need be.

    Raises:
        ArtifactError: it is damaged or of another version, or there is none to read.
        DiskError: it cannot be made or opened.

    """
    path = folder / FILE
    if readonly and not path.exists():
        raise ArtifactError(f"{path}: there is no ledger yet; `python -m pipeline generate DATASET` makes it")
    try:
        db = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")  # NORMAL would let a power cut take back what a request was promised
        db.execute("PRAGMA wal_autocheckpoint=8000")  # 32 MiB: pages that many rows share are copied back once for all of them
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0 and not readonly:
            db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            raise ArtifactError(
                f"{path}: schema {version}, this code reads {SCHEMA_VERSION}; use the code that wrote it to `store export`, or move the file away"
            )
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    return db


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
        raise store_error(folder / FILE, error) from error
    finally:
        db.close()


def store_error(path: Path, error: sqlite3.Error) -> ArtifactError | DiskError:
    """Say what SQLite found, in terms of what the user can do."""
    if isinstance(error, sqlite3.OperationalError):
        return DiskError(f"{path}: the ledger cannot be written ({error}); free some space on its disk and run again: what was answered so far is kept")
    return ArtifactError(f"{path}: the ledger is damaged ({error}); run `python -m pipeline store verify`")


def settle_orphans(db: sqlite3.Connection) -> int:
    """Book requests whose process died before the answer came: they stay charged with the most that they can have cost."""
    return db.execute("UPDATE attempts SET state='uncertain', kind='killed', message='the generator died before the answer came' WHERE state='sent'").rowcount


def spending(db: sqlite3.Connection, purse: str, dataset: str | None = None) -> Spending:
    """What counts against the caps of a purse, for one dataset or for all."""
    query = "SELECT coalesce(sum(charge_pico), 0), coalesce(sum(charge_tokens), 0) FROM attempts WHERE purse=?1 AND (?2 IS NULL OR dataset=?2)"
    pico, tokens = db.execute(query, (purse, dataset)).fetchone()
    return Spending(pico, tokens)


def answered(db: sqlite3.Connection, keys: Sequence[str]) -> dict[str, int]:
    """Attempts that hold the answers of those keys that have one."""
    return dict(db.execute(f"SELECT key, attempt FROM answers WHERE key IN ({','.join('?' * len(keys))})", keys).fetchall())  # noqa: S608


def next_attempt(db: sqlite3.Connection) -> int:
    """First number that no attempt has."""
    (last,) = db.execute("SELECT coalesce(max(id), 0) FROM attempts").fetchone()
    return int(last) + 1


_LATEST = """
SELECT a.key, a.id, a.state, a.kind, a.message, a.provider, a.model, a.policy, b.body, t.requests, t.cost, t.uncertain, t.uncertain_pico, a.prompt_tokens, a.completion_tokens,
  a.sent_at, a.seconds
FROM (SELECT key, max(id) AS last, sum(requests * (kind IS NOT 'unsent')) AS requests, sum(coalesce(cost_pico, 0)) AS cost,
        sum(state='uncertain' OR (state='answer' AND cost_pico IS NULL)) AS uncertain,
        sum(CASE WHEN state='uncertain' OR (state='answer' AND cost_pico IS NULL) THEN charge_pico ELSE 0 END) AS uncertain_pico
      FROM attempts WHERE key IN ({marks}) GROUP BY key) AS t
LEFT JOIN answers AS w ON w.key = t.key
JOIN attempts AS a ON a.id = coalesce(w.attempt, t.last)
LEFT JOIN bodies AS b ON b.attempt = a.id
WHERE w.attempt IS NOT NULL OR a.state NOT IN ('answer', 'restored')
"""
# the last line: an answer that `store gc` dropped is neither an answer nor a failure any more


def outcomes(db: sqlite3.Connection, keys: Sequence[str]) -> dict[str, Attempt]:
    """For each key that was ever asked: its answer, else its last failure."""
    query = _LATEST.format(marks=",".join("?" * len(keys)))
    return {row[0]: Attempt(*row[1:]) for row in db.execute(query, keys)}


def iterate_answers(db: sqlite3.Connection) -> Iterator[tuple[str, int, bytes, bytes]]:
    """Key, attempt, digest and bytes of every answer, in key order."""
    yield from db.execute("SELECT w.key, w.attempt, b.sha256, b.body FROM answers AS w JOIN bodies AS b ON b.attempt = w.attempt ORDER BY w.key")


def latencies(db: sqlite3.Connection, run: int) -> Iterable[tuple[str, int, float, float]]:
    """Provider, answers, median and 95th percentile of seconds, of a run."""
    counts = db.execute("SELECT provider, count(*) FROM attempts WHERE run=? AND state='answer' GROUP BY provider ORDER BY provider", (run,)).fetchall()
    pick = "SELECT seconds FROM attempts WHERE run=? AND state='answer' AND provider IS ? ORDER BY seconds LIMIT 1 OFFSET ?"
    for provider, count in counts:
        median, high = (db.execute(pick, (run, provider, min(count - 1, int(count * share)))).fetchone()[0] for share in (0.5, 0.95))
        yield provider or "?", count, median, high


def usual_tokens(db: sqlite3.Connection, dataset: str) -> float | None:
    """Mean completion tokens of a dataset's answers, or None before any."""
    (mean,) = db.execute("SELECT avg(completion_tokens) FROM attempts WHERE dataset=? AND state='answer'", (dataset,)).fetchone()
    return None if mean is None else float(mean)


def usual_rate(db: sqlite3.Connection, provider: str) -> float | None:
    """Answers a second in the last run with that model that gave any, or None."""
    query = """SELECT count(*) / max(r.ended_at - r.started_at, 1e-3) FROM runs AS r JOIN attempts AS a ON a.run = r.id AND a.state = 'answer'
    WHERE r.provider = ? AND r.ended_at IS NOT NULL GROUP BY r.id ORDER BY r.id DESC LIMIT 1"""
    row = db.execute(query, (provider,)).fetchone()
    return None if row is None else float(row[0])
