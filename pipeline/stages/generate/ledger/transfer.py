"""Answers out of one ledger and into another: the lines that `store export` writes and `store import` takes."""

import base64
import binascii
import hashlib
import sqlite3
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from pipeline.core.errors import InputError
from pipeline.core.files import read_jsonl
from pipeline.formats.schema.timings import Timing
from pipeline.stages.generate.ledger.ledger import StoredAnswer, settled
from pipeline.stages.generate.ledger.restore import Line, Restored, insert, is_key
from pipeline.stages.generate.limits.money import to_usd
from pipeline.stages.generate.output.projection import object_of
from pipeline.stages.generate.provider.classify import is_spoilt, payload
from pipeline.stages.generate.requests.prompt_source import CHUNK

_RESTORED = "restored "


def to_line(answer: StoredAnswer) -> bytes:
    """Write an answer as JSON: its bytes, and what the account says of it, by the names of responses.jsonl."""
    row = {
        "key": answer.key,
        "sha256": answer.sha256.hex(),
        "dataset": answer.dataset,
        "purse": answer.purse.removeprefix(_RESTORED),
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


def take(path: Path, db: sqlite3.Connection) -> tuple[Restored, int]:
    """Take into the ledger what the file holds and the ledger does not; all of the file, or nothing. Give what was new, and how many were there already.

    What an answer cost counts against its dataset's caps here as well, as that of a restored `responses.jsonl` does.

    Raises:
        InputError: a line is not what `store export` writes, or its body not the one that was received; the message has the line's number.

    """
    found, known = Restored(), 0
    lines = read_jsonl(path)
    db.execute("BEGIN IMMEDIATE")
    try:
        while chunk := list(islice(lines, CHUNK)):
            fresh = {
                row["key"]: (line, account)
                for row, line, account in (_parsed(f"{path}:{number}", row) for number, row in chunk)
            }
            there = settled(db, list(fresh))
            for key, (line, account) in fresh.items():
                if key not in there:
                    insert(db, key, line, found, account)
            known += len(there)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return found, known


def _parsed(place: str, row: Any) -> tuple[dict[str, Any], Line, tuple[str, str]]:
    """Check one line; give it, what is to be inserted, and the account that it belongs to."""
    texts = ("sha256", "dataset", "purse", "body_base64")
    if (
        not isinstance(row, dict)
        or not is_key(row.get("key"))
        or not all(isinstance(row.get(name), str) for name in texts)
    ):
        hint = (
            "; a responses.jsonl belongs to build/<dataset>/, where `generate` takes its answers"
            if isinstance(row, dict) and "response" in row
            else ""
        )
        raise InputError(
            f"{place}: no line of `store export`: needed are key, {', '.join(texts)}{hint}; nothing was taken"
        )
    try:
        body = base64.b64decode(row["body_base64"], validate=True)
    except binascii.Error as error:
        raise InputError(f"{place}: body_base64 is no base64 ({error}); nothing was taken") from error
    if (digest := hashlib.sha256(body).hexdigest()) != row["sha256"]:
        raise InputError(
            f"{place}: the body's digest is {digest[:16]}, the line says {row['sha256'][:16]}: the file is damaged; nothing was taken"
        )
    spoilt = is_spoilt(body)
    if not spoilt and object_of(payload(body)) is None:
        raise InputError(f"{place}: the body is no answer; nothing was taken")
    times = [value if isinstance(value := row.get(name), int | float) else None for name in ("sent_at", "seconds")]
    timing = Timing(id="", key=row["key"], sent_at=times[0], seconds=times[1])
    return (
        row,
        Line(place, row, "spoilt" if spoilt else "restored", body, timing),
        (row["dataset"], _RESTORED + row["purse"]),
    )
