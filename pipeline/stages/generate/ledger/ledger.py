"""The ledger: every request that may cost money, and every answer, in SQLite.

A request's row, with the most that it can cost, is on the disk before the request is sent; an answer's bytes are on the
disk before the row counts as done. One process writes (`home.only_writer`), through one thread (`writer.Writer`); any
process may read. Money is in picodollars.
"""

import contextlib
import os
import shutil
import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.errors import ArtifactError, BusyError, DiskError
from pipeline.core.home import STORE_VARIABLE
from pipeline.stages.generate.ledger import migrations
from pipeline.stages.generate.ledger.lock import only_writer

FILE = "ledger.sqlite"

SETTLED = "('answer', 'restored', 'spoilt')"
"""SQL: states after which a prompt is not asked again."""


class Attempt(NamedTuple):
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

    @property
    def settled(self) -> bool:
        """Whether the key is not asked again: it is answered, or what came is whole, paid for, and of no use."""
        return self.answered or self.state == "spoilt"


class StoredAnswer(NamedTuple):
    """What settled a key, as another ledger needs it."""

    key: str
    sha256: bytes
    body: bytes
    dataset: str
    purse: str
    requests: int
    cost_pico: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    provider: str | None
    model: str | None
    policy: str | None
    sent_at: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Spending:
    """What counts against a cap."""

    pico: int
    tokens: int


def connect(folder: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Open the ledger, and make it if need be; bring an older one up to date. Who does not open it ``readonly`` holds it alone (`home.only_writer`).

    Raises:
        ArtifactError: it is damaged or of another version, or there is none to read.
        DiskError: it cannot be made or opened.
        BusyError: it is of an older version, and the generator that uses it is still at work.

    """
    path = folder / FILE
    if readonly and not path.exists():
        raise none_yet(path)
    try:
        try:
            db = _open(path)
        except sqlite3.OperationalError as error:
            if is_full(error):
                db = _open(
                    path, "PRAGMA locking_mode=EXCLUSIVE"
                )  # without a file of shared memory, for which there is no room: enough for who only reads
            elif readonly and not os.access(folder, os.W_OK) and not path.with_name(f"{FILE}-wal").exists():
                db = _open(
                    path, options="?immutable=1"
                )  # a folder that takes no file at all; nobody is at work on the ledger
            else:
                raise
        if (version := migrations.version_of(db)) != migrations.VERSION:
            _upgrade(db, folder, version, alone=not readonly)
    except sqlite3.Error as error:
        raise store_error(path, error, opening=True) from error
    return db


def _open(path: Path, *first: str, options: str = "") -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}{options}", timeout=60, isolation_level=None, check_same_thread=False, uri=True
    )
    settings = (
        *first,
        "PRAGMA page_size=16384",  # of a file that is made now; each page is two system calls, and an answer is some ten KiB
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",  # NORMAL would let a power cut take back what a request was promised
        "PRAGMA wal_autocheckpoint=2000",  # 32 MiB of such pages: those that many rows share are copied back once for all of them
        "PRAGMA cache_size=-16384",  # 16 MiB: keys are looked up in no order, and their index must stay in memory
        "PRAGMA temp_store=MEMORY",  # a full disk for temporary files may not stop a commit
    )
    try:
        for setting in settings:
            db.execute(setting)
    except BaseException:
        db.close()
        raise
    return db


def none_yet(path: Path) -> ArtifactError:
    """There is no ledger in that place, and the command does not make one."""
    return ArtifactError(f"{path}: there is no ledger yet; `python -m pipeline generate DATASET` makes it")


def _upgrade(db: sqlite3.Connection, folder: Path, version: int, *, alone: bool) -> None:
    path = folder / FILE
    if version == migrations.EMPTY and not alone:
        raise none_yet(path)
    if not migrations.upgradable(version):
        raise ArtifactError(
            f"{path}: schema {version}, this code reads {migrations.VERSION}; use the code that wrote it to `store export`, or move the file away"
        )
    if alone:
        migrations.upgrade(db)
        return
    try:
        with only_writer(folder, wait=False, say=print):
            migrations.upgrade(db)
    except BusyError as error:
        raise BusyError(
            f"{path}: schema {version}, this code reads {migrations.VERSION} and cannot bring it up to date now: {error}"
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
        raise store_error(folder / FILE, error) from error
    finally:
        db.close()


_ASIDE = f"move it aside with its {FILE}-wal and {FILE}-shm, and run again: what a build/<dataset>/responses.jsonl holds is taken from there, and only the rest is asked and paid for again"


def store_error(path: Path, error: sqlite3.Error, *, opening: bool = False) -> ArtifactError | DiskError:
    """Say what SQLite found, in terms of what the user can do."""
    if isinstance(error, sqlite3.OperationalError):
        return DiskError(
            f"{path}: the ledger cannot be {'opened' if opening else 'written'} ({error}); {_remedy(path, error)}: what was answered so far is kept"
        )
    if opening:
        return ArtifactError(f"{path}: this is no ledger, or a damaged one ({error}); {_ASIDE}")
    return ArtifactError(
        f"{path}: the ledger is damaged ({error}); save its answers with `python -m pipeline store export --out FILE`, to be taken back by `store import FILE`; {_ASIDE}"
    )


def _remedy(path: Path, error: sqlite3.Error) -> str:
    if is_full(error):
        return f"{shutil.disk_usage(path.parent).free:,} bytes are left on its disk: free some space and run again"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another process holds it: wait for that, and run again"
    return f"see that you may write to {path.parent} and to what is in it, or set {STORE_VARIABLE} to a folder where you may, and run again"


def is_full(error: sqlite3.Error) -> bool:
    """Whether it says that there is no room, for all of it at least; with some file systems that is an input/output error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def keep_note(db: sqlite3.Connection, statement: str, values: tuple[Any, ...]) -> None:
    """Write what only spares a later run some work, if the disk has room: a full one may not keep the answers from being written out."""
    with contextlib.suppress(sqlite3.OperationalError):
        db.execute(statement, values)


def settle_orphans(db: sqlite3.Connection) -> int:
    """Book requests whose process died before the answer came: they stay charged with the most that they can have cost."""
    return db.execute(
        """INSERT INTO results(attempt, state, charge_pico, charge_tokens, kind, message)
        SELECT q.id, 'uncertain', q.most_pico, q.most_tokens, 'killed', 'the generator died before the answer came'
        FROM requests AS q LEFT JOIN results AS r ON r.attempt = q.id WHERE r.id IS NULL"""
    ).rowcount


def spending(db: sqlite3.Connection, purse: str, dataset: str | None = None) -> Spending:
    """What counts against the caps of a purse, for one dataset or for all; what was restored into it from a responses.jsonl included."""
    query = """SELECT coalesce(sum(charge_pico), 0), coalesce(sum(charge_tokens), 0) FROM attempts
    WHERE purse IN (?1, 'restored ' || ?1) AND (?2 IS NULL OR dataset=?2)"""
    pico, tokens = db.execute(query, (purse, dataset)).fetchone()
    return Spending(pico, tokens)


def settled(db: sqlite3.Connection, keys: Sequence[str]) -> dict[str, int]:
    """Attempts that settled those keys that are not to be asked again."""
    return dict(
        db.execute(
            f"SELECT q.key, q.id FROM requests AS q JOIN results AS r ON r.attempt = q.id WHERE q.key IN ({_marks(keys)}) AND r.state IN {SETTLED}",  # noqa: S608
            keys,
        )
    )


def asked_before(db: sqlite3.Connection, keys: Sequence[str]) -> set[str]:
    """Those keys that have a request, however it ended."""
    return {key for (key,) in db.execute(f"SELECT key FROM requests WHERE key IN ({_marks(keys)})", keys)}  # noqa: S608


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def next_attempt(db: sqlite3.Connection) -> int:
    """First number that no request has."""
    (last,) = db.execute("SELECT coalesce(max(id), 0) FROM requests").fetchone()
    return int(last) + 1


def next_result(db: sqlite3.Connection) -> int:
    """First number that no result has, and so no body."""
    (last,) = db.execute("SELECT coalesce(max(id), 0) FROM results").fetchone()
    return int(last) + 1


_UNKNOWN_COST = "(state='uncertain' OR (state IN ('answer', 'spoilt', 'dropped') AND cost_pico IS NULL))"

_OUTCOMES = f"""
SELECT q.key, q.id, coalesce(r.state, 'sent'), r.kind, r.message, r.provider, r.model, r.policy, b.body, coalesce(r.requests, 1) * (r.kind IS NOT 'unsent'),
  coalesce(r.cost_pico, 0), coalesce({_UNKNOWN_COST}, 0), iif({_UNKNOWN_COST}, r.charge_pico, 0), r.prompt_tokens, r.completion_tokens, r.sent_at, r.seconds
FROM requests AS q LEFT JOIN results AS r ON r.attempt = q.id LEFT JOIN bodies AS b ON b.id = r.id WHERE q.key IN ({{marks}})
"""  # noqa: S608


def outcomes(db: sqlite3.Connection, keys: Sequence[str]) -> dict[str, Attempt]:
    """For each key that was ever asked: what settled it, else its last failure. An answer that `store gc` dropped is neither."""
    found: dict[str, Attempt] = {}
    for key, *row in db.execute(_OUTCOMES.format(marks=_marks(keys)), keys):
        attempt = Attempt(*row)
        found[key] = _both(found[key], attempt) if key in found else attempt
    return {key: attempt for key, attempt in found.items() if attempt.state != "dropped"}


def _both(one: Attempt, other: Attempt) -> Attempt:
    """Two attempts at a key as one: what came last, or settled it, with the requests and the money of both."""
    last = max(one, other, key=lambda attempt: (attempt.settled, attempt.id))
    return last._replace(
        requests=one.requests + other.requests,
        cost_pico=one.cost_pico + other.cost_pico,
        uncertain=one.uncertain + other.uncertain,
        uncertain_pico=one.uncertain_pico + other.uncertain_pico,
    )


def iterate_answers(db: sqlite3.Connection) -> Iterator[tuple[str, bytes, bytes]]:
    """Key, digest and bytes of every answer, in key order."""
    yield from db.execute(
        """SELECT q.key, b.sha256, b.body FROM requests AS q JOIN results AS r ON r.attempt = q.id JOIN bodies AS b ON b.id = r.id
        WHERE r.state IN ('answer', 'restored') ORDER BY q.key"""
    )


def readable_answers(db: sqlite3.Connection, unreadable: list[str]) -> Iterator[StoredAnswer]:
    """Every answer, one look-up each and without an index, so that a damaged page costs what lies on it; the rest is named in ``unreadable``."""
    query = f"""SELECT q.key, b.sha256, b.body, q.dataset, q.purse, r.requests, r.cost_pico, r.prompt_tokens, r.completion_tokens, r.provider, r.model, r.policy,
      r.sent_at, r.seconds FROM results AS r CROSS JOIN requests AS q ON q.id = r.attempt CROSS JOIN bodies AS b ON b.id = r.id
    WHERE r.id = ? AND r.state IN {SETTLED}"""  # noqa: S608
    try:
        end = next_result(db)
    except sqlite3.DatabaseError:  # each result has a request of its own, so there are no more results than requests
        end = next_attempt(db)
    for number in range(1, end):
        try:
            yield from map(StoredAnswer._make, db.execute(query, (number,)).fetchall())
        except sqlite3.DatabaseError as error:
            unreadable.append(f"result {number}: {error}")


def latencies(db: sqlite3.Connection, run: int) -> Iterator[tuple[str, "array[float]"]]:
    """Provider, and the sorted seconds of its answers, in a run."""
    rows = db.execute(
        """SELECT coalesce(r.provider, '?') AS name, r.seconds FROM requests AS q JOIN results AS r ON r.attempt = q.id
        WHERE q.run=? AND r.state='answer' ORDER BY name, r.seconds""",
        (run,),
    )
    for provider, group in groupby(rows, itemgetter(0)):
        yield provider, array("d", (row[1] for row in group))


def usual_tokens(db: sqlite3.Connection, dataset: str) -> float | None:
    """Mean completion tokens of a dataset's answers, or None before any."""
    (mean,) = db.execute(
        "SELECT avg(completion_tokens) FROM attempts WHERE dataset=? AND state='answer'", (dataset,)
    ).fetchone()
    return None if mean is None else float(mean)


def usual_rate(db: sqlite3.Connection, provider: str) -> float | None:
    """Answers a second in the last run with that model that gave any, or None."""
    query = """SELECT count(*) / max(r.ended_at - r.started_at, 1e-3) FROM runs AS r JOIN attempts AS a ON a.run = r.id AND a.state = 'answer'
    WHERE r.provider = ? AND r.ended_at IS NOT NULL GROUP BY r.id ORDER BY r.id DESC LIMIT 1"""
    row = db.execute(query, (provider,)).fetchone()
    return None if row is None else float(row[0])
