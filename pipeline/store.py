"""`python -m pipeline store`: the ledger of paid responses: stats, verify, settle, gc, export."""

import argparse
import base64
import hashlib
import math
import sqlite3
import time
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from pipeline.artifacts import read_jsonl, write_jsonl
from pipeline.compose import build_config, read_params
from pipeline.errors import ArtifactError
from pipeline.generate import ledger
from pipeline.generate.home import only_writer
from pipeline.generate.money import to_usd
from pipeline.home import STORE_VARIABLE, store_folder
from pipeline.terminal import plain_table

_DAY = 86400.0


def main(argv: list[str]) -> int | None:
    """Run one of the ledger's commands.

    Raises:
        AerieError: there is no ledger, it is damaged, or a generator holds it while it should be changed.

    """
    parser = argparse.ArgumentParser(prog="python -m pipeline store", description=f"{__doc__} It lives in the clone's git folder, or in ${STORE_VARIABLE}.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("stats", help="answers, money and size, by dataset")
    commands.add_parser("verify", help="check the database, and every answer against its digest; exit code 1 when something is wrong")
    commands.add_parser(
        "settle", help="ask OpenRouter what the requests cost whose answer was lost, and book that in place of the most that it can be; costs nothing"
    )
    gc = commands.add_parser("gc", help="drop bodies of old failures, and shrink the file; answers stay unless --unlisted says otherwise")
    gc.add_argument("--days", type=_days, default=30.0, help="age from which a failure's body goes (30)")
    gc.add_argument(
        "--unlisted", nargs="+", metavar="RESPONSES", help="also drop every answer that none of these responses.jsonl has; those would have to be paid again"
    )
    gc.add_argument("--yes", action="store_true", help="really drop answers; without it, only say how many")
    export = commands.add_parser("export", help="all answers as JSON lines {key, sha256, body_base64}")
    export.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    folder = store_folder()
    if options.command == "gc":
        with only_writer(folder, wait=False, say=print), ledger.opened(folder, readonly=True) as db:
            collect(db, options.days, options.unlisted, really=options.yes)
        return None
    if options.command == "settle":
        _settle(folder)
        return None
    with ledger.opened(folder, readonly=True) as db:
        if options.command == "stats":
            Console().print(stats(db, folder))
        elif options.command == "export":
            print(f"{write_jsonl(options.out, map(_exported, ledger.iterate_answers(db)))} answers written to {options.out}")
        else:
            return verify(db)
    return None


def _days(text: str) -> float:
    days = float(text)
    if not 0 <= days < math.inf:
        raise argparse.ArgumentTypeError(f"an age in days is 0 or more; found {text}")
    return days


def _settle(folder: Path) -> None:
    from pipeline.generate.settling import settle  # the network client is slow to import

    provider = build_config(read_params()).provider
    if not (folder / ledger.FILE).exists():
        raise ArtifactError(f"{folder / ledger.FILE}: there is no ledger yet, so nothing to settle")
    with only_writer(folder, wait=False, say=print), ledger.opened(folder) as db:
        ledger.settle_orphans(db)
        found = settle(db, provider)
    print(f"{found.settled} requests settled: ${to_usd(found.cost_pico):.6f} in place of at most ${to_usd(found.charged_pico):.6f}")
    for why, count in sorted(found.unknown.items()):
        print(f"{count} as uncertain as before: {why}")
    if found.untraceable:
        print(f"{found.untraceable} cannot be asked for, since their id never came: at most ${to_usd(found.untraceable_pico):.6f} stays booked")
    if found.settled:
        print("`python -m pipeline generate DATASET` brings a dataset's summary up to date")


def stats(db: sqlite3.Connection, folder: Path) -> Table:
    """Count requests, answers and money by dataset and purse; `open` are those whose answer never came."""
    size = (folder / ledger.FILE).stat().st_size
    table = plain_table(
        f"{folder / ledger.FILE}: {size / 2**20:.1f} MiB", ["dataset", "money"], ["sent", "answers", "failed", "open", "tokens", "spent", "or up to"]
    )
    # a request whose row was written and which then was not sent is none
    query = """SELECT dataset, purse, sum(requests * (kind IS NOT 'unsent')), sum(state IN ('answer', 'restored')), sum(state='failed' AND kind IS NOT 'unsent'), sum(state IN ('uncertain', 'sent')),
      sum(coalesce(completion_tokens, 0)), sum(coalesce(cost_pico, 0)), sum(CASE WHEN cost_pico IS NULL THEN charge_pico ELSE 0 END)
      FROM attempts GROUP BY dataset, purse ORDER BY purse, dataset"""
    for dataset, purse, *counts, spent, uncertain in db.execute(query):
        table.add_row(dataset or "(other clones)", purse, *(f"{count:,}" for count in counts), f"${to_usd(spent):.4f}", f"${to_usd(spent + uncertain):.4f}")
    return table


def verify(db: sqlite3.Connection) -> int:
    """Check the file's structure and every answer's bytes; return the exit code."""
    faults = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
    lost = db.execute("SELECT w.key FROM answers AS w LEFT JOIN bodies AS b ON b.attempt = w.attempt WHERE b.attempt IS NULL").fetchall()
    faults += [f"answer {key}: its body is gone" for (key,) in lost]
    count = 0
    for key, _attempt, digest, body in ledger.iterate_answers(db):
        count += 1
        if hashlib.sha256(body).digest() != digest:
            faults.append(f"answer {key}: its bytes differ from what was received")
    for fault in faults:
        print(fault)
    print(f"{count} answers read; {len(faults)} faults")
    return 1 if faults else 0


def collect(db: sqlite3.Connection, days: float, unlisted: list[str] | None, *, really: bool) -> None:
    """Drop what nobody needs. Rows of attempts always stay: they are the account of what was spent.

    Raises:
        ArtifactError: a responses.jsonl has a row without a key.

    """
    old = time.time() - days * _DAY
    failed = "DELETE FROM bodies WHERE attempt IN (SELECT id FROM attempts WHERE state IN ('failed', 'uncertain') AND sent_at < ?)"
    print(f"{db.execute(failed, (old,)).rowcount} bodies of failed requests dropped")
    if unlisted is not None:
        _drop_unlisted(db, [Path(path) for path in unlisted], really=really)
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _drop_unlisted(db: sqlite3.Connection, files: list[Path], *, really: bool) -> None:
    db.execute("CREATE TEMP TABLE listed(key TEXT PRIMARY KEY) WITHOUT ROWID")
    for path in files:
        for number, row in read_jsonl(path):
            if not isinstance(row, dict) or not isinstance(row.get("key"), str):
                raise ArtifactError(f"{path}:{number}: no row of responses.jsonl: it has no key; nothing was dropped")
            db.execute("INSERT OR IGNORE INTO listed VALUES(?)", (row["key"],))
    (count, cost) = db.execute(
        "SELECT count(*), coalesce(sum(a.cost_pico), 0) FROM answers AS w JOIN attempts AS a ON a.id = w.attempt WHERE w.key NOT IN (SELECT key FROM listed)"
    ).fetchone()
    if not really:
        print(f"{count} answers (${to_usd(cost):.6f}) are in none of the files; add --yes to drop them")
        return
    db.execute("BEGIN IMMEDIATE")
    db.execute("DELETE FROM bodies WHERE attempt IN (SELECT attempt FROM answers WHERE key NOT IN (SELECT key FROM listed))")
    db.execute("DELETE FROM answers WHERE key NOT IN (SELECT key FROM listed)")
    db.execute("COMMIT")
    print(f"{count} answers (${to_usd(cost):.6f}) dropped")


def _exported(row: tuple[str, int, bytes, bytes]) -> bytes:
    key, _attempt, digest, body = row
    return orjson.dumps({"key": key, "sha256": digest.hex(), "body_base64": base64.b64encode(body).decode()})
