"""`python -m pipeline store`: the ledger of paid responses: stats, verify, settle, gc, export, import."""

import argparse
import contextlib
import hashlib
import math
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.core.errors import ArtifactError, DiskError
from pipeline.core.files import read_jsonl, write_jsonl
from pipeline.core.home import STORE_VARIABLE, store_folder
from pipeline.core.terminal import plain_table
from pipeline.project.compose import build_config
from pipeline.project.params import read_params
from pipeline.stages.generate.ledger import ledger
from pipeline.stages.generate.ledger.lock import only_writer
from pipeline.stages.generate.ledger.transfer import take, to_line
from pipeline.stages.generate.limits.money import to_usd

_DAY = 86400.0


def main(argv: list[str]) -> int | None:
    """Run one of the ledger's commands.

    Raises:
        AerieError: there is no ledger, it is damaged, or a generator holds it while it should be changed.

    """
    parser = argparse.ArgumentParser(
        prog="python -m pipeline store",
        description=f"{__doc__} It lives in the clone's git folder, or in ${STORE_VARIABLE}.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("stats", help="answers, money and size, by dataset")
    commands.add_parser(
        "verify", help="check the database, and every answer against its digest; exit code 1 when something is wrong"
    )
    commands.add_parser(
        "settle",
        help="ask OpenRouter what the requests cost whose answer was lost, and book that in place of the most that it can be; costs nothing",
    )
    gc = commands.add_parser(
        "gc", help="drop bodies of old failures, and shrink the file; answers stay unless --unlisted says otherwise"
    )
    gc.add_argument(
        "--days",
        type=_days,
        default=30.0,
        help="age from which a failure's body goes, and an answer that cannot be used may be asked for again (30)",
    )
    gc.add_argument(
        "--unlisted",
        nargs="+",
        metavar="RESPONSES",
        help="also drop every answer that none of these responses.jsonl has; those would have to be paid again",
    )
    gc.add_argument("--yes", action="store_true", help="really drop answers; without it, only say how many")
    export = commands.add_parser(
        "export",
        help="all answers, with what they cost, as JSON lines for `store import`; those that can be read, when the file is damaged",
    )
    export.add_argument("--out", type=Path, required=True)
    taken = commands.add_parser(
        "import",
        help="take up the answers of a file that `store export` wrote, here or elsewhere: none of them is paid for again",
    )
    taken.add_argument("file", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    folder = store_folder()
    if options.command == "gc":
        with _changing(folder) as db:
            collect(db, options.days, options.unlisted, really=options.yes)
        return None
    if options.command == "settle":
        _settle(folder)
        return None
    if options.command == "import":
        import_answers(folder, options.file)
        return None
    with ledger.opened(folder, readonly=True) as db:
        if options.command == "stats":
            Console().print(stats(db, folder))
        elif options.command == "export":
            return export_answers(db, options.out)
        else:
            return verify(db)
    return None


def _days(text: str) -> float:
    days = float(text)
    if not 0 <= days < math.inf:
        raise argparse.ArgumentTypeError(f"an age in days is 0 or more; found {text}")
    return days


@contextlib.contextmanager
def _changing(folder: Path) -> Iterator[sqlite3.Connection]:
    """Hold the ledger alone, and open it."""
    if not (path := folder / ledger.FILE).exists():
        raise ledger.none_yet(path)
    with only_writer(folder, wait=False, say=print), ledger.opened(folder) as db:
        yield db


def _settle(folder: Path) -> None:
    from pipeline.stages.generate.provider.settling import settle  # the network client is slow to import

    provider = build_config(read_params()).provider
    with _changing(folder) as db:
        ledger.settle_orphans(db)
        found = settle(db, provider)
    print(
        f"{found.settled} requests settled: ${to_usd(found.cost_pico):.6f} in place of at most ${to_usd(found.charged_pico):.6f}"
    )
    for why, count in sorted(found.unknown.items()):
        print(f"{count} as uncertain as before: {why}")
    if found.untraceable:
        print(
            f"{found.untraceable} cannot be asked for, since their id never came: at most ${to_usd(found.untraceable_pico):.6f} stays booked"
        )
    if found.settled:
        print("`python -m pipeline generate DATASET` brings a dataset's summary up to date")


def stats(db: sqlite3.Connection, folder: Path) -> Table:
    """Count requests, answers and money by dataset and purse; `open` are those whose answer never came."""
    size = (folder / ledger.FILE).stat().st_size
    table = plain_table(
        f"{folder / ledger.FILE}: {size / 2**20:.1f} MiB",
        ["dataset", "money"],
        ["sent", "answers", "failed", "open", "tokens", "spent", "or up to"],
    )
    # a request whose row was written and which then was not sent is none
    query = """SELECT dataset, purse, sum(requests * (kind IS NOT 'unsent')), sum(state IN ('answer', 'restored')), sum(state IN ('failed', 'spoilt') AND kind IS NOT 'unsent'), sum(state IN ('uncertain', 'sent')),
      sum(coalesce(completion_tokens, 0)), sum(coalesce(cost_pico, 0)), sum(CASE WHEN cost_pico IS NULL THEN charge_pico ELSE 0 END)
      FROM attempts GROUP BY dataset, purse ORDER BY purse, dataset"""
    for dataset, purse, *counts, spent, uncertain in db.execute(query):
        table.add_row(
            dataset or "(other clones)",
            purse,
            *(f"{count:,}" for count in counts),
            f"${to_usd(spent):.4f}",
            f"${to_usd(spent + uncertain):.4f}",
        )
    return table


def verify(db: sqlite3.Connection) -> int:
    """Check the file's structure and every answer's bytes; return the exit code."""
    faults = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
    lost = db.execute(
        f"""SELECT q.key FROM requests AS q JOIN results AS r ON r.attempt = q.id LEFT JOIN bodies AS b ON b.id = r.id
        WHERE r.state IN {ledger.SETTLED} AND b.id IS NULL ORDER BY q.key"""  # noqa: S608
    ).fetchall()
    faults += [f"answer {key}: its body is gone" for (key,) in lost]
    count = 0
    for key, digest, body in ledger.iterate_answers(db):
        count += 1
        if hashlib.sha256(body).digest() != digest:
            faults.append(f"answer {key}: its bytes differ from what was received")
    for fault in faults:
        print(fault)
    print(f"{count} answers read; {len(faults)} faults")
    return 1 if faults else 0


def collect(db: sqlite3.Connection, days: float, unlisted: list[str] | None, *, really: bool) -> None:
    """Drop what nobody needs. Rows of requests and results always stay: they are the account of what was spent.

    Raises:
        InputError: a responses.jsonl is missing or damaged; nothing was dropped.
        ArtifactError: a responses.jsonl has a row without a key; nothing was dropped.
        DiskError: no room to drop, or to write the file anew.

    """
    if unlisted is not None:
        _list(db, [Path(path) for path in unlisted])
    old = time.time() - days * _DAY
    db.execute("BEGIN IMMEDIATE")
    query = (
        """SELECT result FROM attempts WHERE state IN ('failed', 'uncertain', 'spoilt') AND coalesce(sent_at, 0) < ?"""
    )
    dropped = db.execute(f"DELETE FROM bodies WHERE id IN ({query})", (old,)).rowcount  # noqa: S608
    db.execute(f"UPDATE results SET state='dropped' WHERE state='spoilt' AND id IN ({query})", (old,))  # noqa: S608
    db.execute("COMMIT")
    print(f"{dropped} bodies of failed requests dropped")
    if unlisted is not None:
        _drop_unlisted(db, really=really)
    _shrink(db)


def _shrink(db: sqlite3.Connection) -> None:
    """Give back to the disk what was dropped.

    Raises:
        DiskError: there is no room to write the file anew.

    """
    db.execute("PRAGMA temp_store=FILE")  # the copy that this makes may be larger than the memory
    try:
        db.execute("VACUUM")
    except sqlite3.OperationalError as error:
        if not ledger.is_full(error):
            raise
        raise DiskError(
            f"what was to go is dropped, and later answers take its place, but {ledger.FILE} cannot be made shorter: that writes it anew, "
            f"first where temporary files lie (SQLITE_TMPDIR or TMPDIR), then beside it ({error}); free some space and run again"
        ) from error
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _list(db: sqlite3.Connection, files: list[Path]) -> None:
    """Put the keys of those responses.jsonl into a table of this connection."""
    db.execute("CREATE TEMP TABLE listed(key TEXT PRIMARY KEY) WITHOUT ROWID")
    for path in files:
        for number, row in read_jsonl(path):
            if not isinstance(row, dict) or not isinstance(row.get("key"), str):
                raise ArtifactError(f"{path}:{number}: no row of responses.jsonl: it has no key; nothing was dropped")
            db.execute("INSERT OR IGNORE INTO listed VALUES(?)", (row["key"],))


_UNLISTED = """SELECT r.id FROM results AS r JOIN requests AS q ON q.id = r.attempt
WHERE r.state IN ('answer', 'restored') AND q.key NOT IN (SELECT key FROM listed)"""


def _drop_unlisted(db: sqlite3.Connection, *, really: bool) -> None:
    count, cost = db.execute(
        f"SELECT count(*), coalesce(sum(cost_pico), 0) FROM results WHERE id IN ({_UNLISTED})"  # noqa: S608
    ).fetchone()
    if not really:
        print(f"{count} answers (${to_usd(cost):.6f}) are in none of the files; add --yes to drop them")
        return
    db.execute("BEGIN IMMEDIATE")
    db.execute(f"DELETE FROM bodies WHERE id IN ({_UNLISTED})")  # noqa: S608
    db.execute(f"UPDATE results SET state='dropped' WHERE id IN ({_UNLISTED})")  # noqa: S608
    db.execute("COMMIT")
    print(f"{count} answers (${to_usd(cost):.6f}) dropped")


def export_answers(db: sqlite3.Connection, out: Path) -> int:
    """Write all answers that can be read, also out of a damaged file; return the exit code, 1 when some cannot."""
    unreadable: list[str] = []
    count = write_jsonl(out, map(to_line, ledger.readable_answers(db, unreadable)))
    print(f"{count} answers written to {out}")
    if unreadable:
        print(f"{len(unreadable)} results cannot be read, the first: {unreadable[0]}")
    return 1 if unreadable else 0


def import_answers(folder: Path, path: Path) -> None:
    """Take up what another ledger exported; this one is made if need be.

    Raises:
        InputError: the file is no export, or damaged; nothing was taken.
        BusyError: a generator holds the ledger.

    """
    with only_writer(folder, wait=False, say=print), ledger.opened(folder) as db:
        found, known = take(path, db)
    print(
        f"{found.answers} answers taken from {path}, {known} were there already; what they cost counts against the caps, as if it had been paid here"
    )
    if found.unpriced:
        print(f"{found.unpriced} of them do not say what they cost, and count no dollars")
    if found.odd:
        print(f"{len(found.odd)} figures in it cannot be, and count as unknown; the first: {found.odd[0]}")
