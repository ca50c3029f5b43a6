"""`python -m pipeline store`: the ledger of paid answers: stats, verify, settle, gc, export, import."""

import argparse
import contextlib
import math
import sqlite3
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.core.home import STORE_VARIABLE, store_folder
from pipeline.core.terminal import plain_table
from pipeline.project.compose import build_config
from pipeline.project.params import read_params
from pipeline.stages.generate.ledger import garbage, transfer, verification
from pipeline.stages.generate.ledger.accounts import dataset_accounts
from pipeline.stages.generate.ledger.connection import FILE, opened, opened_alone
from pipeline.stages.generate.ledger.statements import settle_orphans
from pipeline.stages.generate.limits.money import to_usd

_DAY = 86400.0


def main(argv: list[str]) -> int | None:
    """Run one of the ledger's commands.

    Raises:
        AerieError: there is no ledger, it is damaged, or a generator holds it while it should be changed.

    """
    options = _parser().parse_args(argv)
    folder = store_folder()
    if options.command == "gc":
        with opened_alone(folder, say=print) as db:
            collect(db, options.days, options.unlisted, really=options.yes)
    elif options.command == "settle":
        _settle(folder)
    elif options.command == "import":
        import_answers(folder, options.file)
    else:
        with opened(folder, readonly=True) as db:
            if options.command == "export":
                return export_answers(db, options.out)
            if options.command == "verify":
                return verify(db)
            Console().print(stats(db, folder))
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline store",
        description=f"{__doc__} The ledger is in the clone's git folder, or in ${STORE_VARIABLE}.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("stats", help="answers, money and size, by dataset")
    commands.add_parser(
        "verify", help="check the database, and every answer against its digest; exit code 1 when something is wrong"
    )
    commands.add_parser(
        "settle",
        help="ask OpenRouter for the cost of requests whose answer was lost, and book it in place of the most that it "
        "can be; costs nothing",
    )
    gc = commands.add_parser(
        "gc", help="drop bodies of old failures, and shrink the file; without --unlisted, answers stay"
    )
    gc.add_argument(
        "--days",
        type=_days,
        default=30.0,
        help="age from which a failure's body is dropped, and an unusable answer may be asked for again (30)",
    )
    gc.add_argument(
        "--unlisted",
        nargs="+",
        type=Path,
        metavar="RESPONSES",
        help="also drop every answer that is in none of these responses.jsonl; it would have to be paid for again",
    )
    gc.add_argument("--yes", action="store_true", help="really drop answers; without it, only print how many")
    export = commands.add_parser(
        "export",
        help="write all answers, with what they cost, as JSON lines for `store import`; of a damaged file, those that "
        "can be read",
    )
    export.add_argument("--out", type=Path, required=True)
    importing = commands.add_parser(
        "import", help="take the answers of a file that `store export` wrote: none of them is paid for again"
    )
    importing.add_argument("file", type=Path, metavar="FILE")
    return parser


def _days(text: str) -> float:
    days = float(text)
    if not 0 <= days < math.inf:
        raise argparse.ArgumentTypeError(f"an age in days is 0 or more; found {text}")
    return days


def _settle(folder: Path) -> None:
    from pipeline.stages.generate.provider.settling import settle_uncertain  # the network client is slow to import

    provider = build_config(read_params()).provider
    with opened_alone(folder, say=print) as db:
        settle_orphans(db)
        report = settle_uncertain(db, provider)
    print(
        f"{report.settled} requests settled: ${to_usd(report.cost_pico):.6f} in place of at most "
        f"${to_usd(report.charged_pico):.6f}"
    )
    for why, count in sorted(report.unknown.items()):
        print(f"{count} as uncertain as before: {why}")
    if report.untraceable:
        print(
            f"{report.untraceable} cannot be asked for, since their id never came: at most "
            f"${to_usd(report.untraceable_pico):.6f} stays booked"
        )
    if report.settled:
        print("`python -m pipeline generate DATASET` brings a dataset's summary up to date")


def stats(db: sqlite3.Connection, folder: Path) -> Table:
    """Return a table of requests, answers and money by dataset and purse; `open` counts requests without an answer."""
    size = (folder / FILE).stat().st_size
    table = plain_table(
        f"{folder / FILE}: {size / 2**20:.1f} MiB",
        ["dataset", "money"],
        ["sent", "answers", "failed", "open", "tokens", "spent", "or up to"],
    )
    for account in dataset_accounts(db):
        counts = (account.sent, account.answers, account.failed, account.open, account.tokens)
        table.add_row(
            account.dataset or "(other clones)",
            account.purse,
            *(f"{count:,}" for count in counts),
            f"${to_usd(account.spent_pico):.4f}",
            f"${to_usd(account.spent_pico + account.uncertain_pico):.4f}",
        )
    return table


def verify(db: sqlite3.Connection) -> int:
    """Print every fault of the ledger; return the exit code, 1 when there is one."""
    answers, faults = verification.verify(db)
    for fault in faults:
        print(fault)
    print(f"{answers} answers read; {len(faults)} faults")
    return 1 if faults else 0


def collect(db: sqlite3.Connection, days: float, unlisted: list[Path] | None, *, really: bool) -> None:
    """Drop the bodies of failures older than ``days``, and answers in none of the ``unlisted`` files; shrink the file.

    Raises:
        InputError: a responses.jsonl is missing or damaged; nothing was dropped.
        ArtifactError: a responses.jsonl has a row without a key; nothing was dropped.
        DiskError: the disk has no room to drop, or to write the file anew.

    """
    with garbage.listed_keys(db, unlisted) if unlisted is not None else contextlib.nullcontext():
        dropped = garbage.drop_failures(db, before=time.time() - days * _DAY)
        print(f"{dropped} bodies of failed requests dropped")
        if unlisted is not None:
            count, pico = garbage.unlisted_answers(db)
            answers = f"{count} answers (${to_usd(pico):.6f})"
            if really:
                garbage.drop_unlisted(db)
            print(f"{answers} dropped" if really else f"{answers} are in none of the files; add --yes to drop them")
    garbage.shrink(db)


def export_answers(db: sqlite3.Connection, out: Path) -> int:
    """Write all answers that can be read, also out of a damaged file; return the exit code, 1 when some cannot."""
    report = transfer.export_answers(db, out)
    print(f"{report.answers} answers written to {out}")
    if report.unreadable:
        print(f"{len(report.unreadable)} results cannot be read, the first: {report.unreadable[0]}")
    return 1 if report.unreadable else 0


def import_answers(folder: Path, path: Path) -> None:
    """Take the answers of another ledger's export; the ledger is created if need be.

    Raises:
        InputError: the file is not an export, or is damaged; nothing was taken.
        BusyError: a generator holds the ledger.

    """
    new, known = transfer.import_answers(folder, path, say=print)
    print(
        f"{new.answers} answers taken from {path}, {known} were there already; what they cost counts against the caps, "
        "as if it had been paid here"
    )
    if new.unpriced:
        print(f"{new.unpriced} of them do not say what they cost, and count as free")
    if new.impossible:
        print(
            f"{len(new.impossible)} figures in it are impossible, and count as unknown; the first: {new.impossible[0]}"
        )
