"""`store export` and `store import`: answers moved from one ledger to another, as JSON lines."""

import base64
import binascii
import hashlib
import sqlite3
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from pipeline.core.errors import InputError
from pipeline.core.files.jsonl import read_jsonl, write_jsonl
from pipeline.formats.schema.timings import Timing
from pipeline.stages.generate.ledger.connection import opened, transaction
from pipeline.stages.generate.ledger.lock import only_writer
from pipeline.stages.generate.ledger.queries import readable_answers, settled_keys
from pipeline.stages.generate.ledger.records import StoredAnswer
from pipeline.stages.generate.ledger.restore import (
    Account,
    RestorableRow,
    RestoreReport,
    enter,
    is_key,
    paying_purse,
)
from pipeline.stages.generate.limits.money import to_usd
from pipeline.stages.generate.output.projection import object_of
from pipeline.stages.generate.provider.classify import is_spoilt, payload
from pipeline.stages.generate.requests.prompt_source import CHUNK


class ExportReport(NamedTuple):
    """Counts of an export."""

    answers: int
    unreadable: list[str]
    """Results that cannot be read, and why."""


def export_answers(db: sqlite3.Connection, out: Path) -> ExportReport:
    """Write all answers that can be read, also out of a damaged file."""
    unreadable: list[str] = []
    count = write_jsonl(out, map(_export_line, readable_answers(db, unreadable)))
    return ExportReport(count, unreadable)


def _export_line(answer: StoredAnswer) -> bytes:
    """Return an answer as JSON: its bytes and its figures, by the names of responses.jsonl."""
    row = {
        "key": answer.key,
        "sha256": answer.sha256.hex(),
        "dataset": answer.dataset,
        "purse": paying_purse(answer.purse),
        "provider": answer.provider,
        "model": answer.model,
        "attempts": answer.requests,
        "cost_usd": None if answer.cost_pico is None else to_usd(answer.cost_pico),
        "usage": {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens},
        "policy": answer.policy,
        "sent_at": answer.sent_at,
        "seconds": answer.seconds,
        "body_base64": base64.b64encode(answer.body).decode(),
    }
    return orjson.dumps(row)


class ImportReport(NamedTuple):
    """Counts of an import."""

    new: RestoreReport
    known: int
    """Answers that the ledger had already."""


def import_answers(folder: Path, path: Path, *, say: Callable[[str], None]) -> ImportReport:
    """Take into the ledger, which is created if need be, what a file has and the ledger lacks: all of it, or nothing.

    What an answer cost counts against its dataset's caps here as well, as with a restored `responses.jsonl`.

    Raises:
        InputError: a line is not one that `store export` writes, or its body is damaged; nothing was taken.
        BusyError: a generator holds the ledger.

    """
    report, known = RestoreReport(), 0
    lines = read_jsonl(path)
    with only_writer(folder, wait=False, say=say), opened(folder) as db, transaction(db):
        while chunk := list(islice(lines, CHUNK)):
            parsed = [_parsed(f"{path}:{number}", row) for number, row in chunk]
            by_key = {source.row["key"]: (source, account) for source, account in parsed}
            settled = settled_keys(db, list(by_key))
            for key, (source, account) in by_key.items():
                if key not in settled:
                    enter(db, key, source, report, account)
            known += len(settled)
    return ImportReport(report, known)


_TEXTS = ("sha256", "dataset", "purse", "body_base64")


def _parsed(place: str, row: Any) -> tuple[RestorableRow, Account]:
    """Check one line; return its row and its account."""
    if (
        not isinstance(row, dict)
        or not is_key(row.get("key"))
        or not all(isinstance(row.get(name), str) for name in _TEXTS)
    ):
        hint = (
            "; a responses.jsonl belongs in build/<dataset>/, where `generate` reads its answers"
            if isinstance(row, dict) and "response" in row
            else ""
        )
        raise InputError(
            f"{place}: not a line of `store export`: it needs key, {', '.join(_TEXTS)}{hint}; nothing was taken"
        )
    body = _checked_body(place, row)
    spoilt = is_spoilt(body)
    if not spoilt and object_of(payload(body)) is None:
        raise InputError(f"{place}: the body is not an answer; nothing was taken")
    sent_at, seconds = (
        value if isinstance(value := row.get(name), int | float) else None for name in ("sent_at", "seconds")
    )
    timing = Timing(id="", key=row["key"], sent_at=sent_at, seconds=seconds)
    return (
        RestorableRow(place, row, "spoilt" if spoilt else "restored", body, timing),
        Account.restored(row["dataset"], row["purse"]),
    )


def _checked_body(place: str, row: dict[str, Any]) -> bytes:
    try:
        body = base64.b64decode(row["body_base64"], validate=True)
    except binascii.Error as error:
        raise InputError(f"{place}: body_base64 is not base64 ({error}); nothing was taken") from error
    if (digest := hashlib.sha256(body).hexdigest()) != row["sha256"]:
        raise InputError(
            f"{place}: the body's digest is {digest[:16]}, the line says {row['sha256'][:16]}: the file is damaged; "
            "nothing was taken"
        )
    return body
