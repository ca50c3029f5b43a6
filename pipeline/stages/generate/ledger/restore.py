"""responses.jsonl back into a ledger: what another clone paid for, or this one before its ledger was lost."""

import base64
import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from pipeline.core.files import read_lines
from pipeline.formats.completion.usage import usage_of
from pipeline.formats.completion.values import dollars, mapping
from pipeline.formats.schema.timings import Timing
from pipeline.model.conversation import show
from pipeline.stages.generate.ledger.ledger import asked_before, next_attempt, next_result, settled
from pipeline.stages.generate.limits.money import to_pico
from pipeline.stages.generate.output.projection import RESPONSE, object_of
from pipeline.stages.generate.output.timing import read_timings
from pipeline.stages.generate.provider.classify import is_spoilt
from pipeline.stages.generate.requests.prompt_source import CHUNK

_REQUEST = "INSERT INTO requests(id, key, dataset, purse, run, most_pico, most_tokens) VALUES(?, ?, ?, ?, 0, ?, ?)"
_RESULT = """INSERT INTO results(id, attempt, state, charge_pico, charge_tokens, kind, message, sent_at, seconds, requests, cost_pico, prompt_tokens, completion_tokens, provider, model, policy)
VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_BODY = "INSERT INTO bodies(id, sha256, body) VALUES(?, ?, ?)"
_MOST_REQUESTS = 1_000_000
"""Requests that one prompt can have taken; a line that says more is wrong."""


@dataclass(slots=True)
class Restored:
    """What a file gave."""

    answers: int = 0
    """Answers that the ledger did not have."""
    unpriced: int = 0
    """Those of them that do not say what they cost."""
    odd: list[str] = field(default_factory=list)
    """Place and value of figures that cannot be: their answers were taken without them."""
    strange: list[int] = field(default_factory=list)
    """Lines that hold a response and were not written by this program: not taken."""

    def lines(self, path: Path) -> Iterator[str]:
        """Say it to people."""
        yield f"generate: took {self.answers} answers from {path} into the ledger; they count against the caps with what they cost"
        if self.unpriced:
            yield f"generate: {self.unpriced} of them do not say what they cost, and count no dollars"
        if self.odd:
            yield f"generate: {len(self.odd)} figures in it cannot be, and count as unknown; the first: {self.odd[0]}"
        if self.strange:
            yield (
                f"generate: {len(self.strange)} lines of it, the first {path}:{self.strange[0]}, hold a response, but not in the form that this program writes "
                "(was the file edited or formatted anew?); their prompts are asked again unless the ledger has their answers: `dvc checkout` brings the file back"
            )


class Line(NamedTuple):
    """What a line of responses.jsonl says of its key."""

    place: str
    row: dict[str, Any]
    state: str
    """restored, spoilt, or failed: a failure that was paid for."""
    body: bytes | None
    timing: Timing | None


def restore(path: Path, timings: Path, db: sqlite3.Connection, *, dataset: str, purse: str) -> Restored:
    """Take into the ledger what a `responses.jsonl` holds and the ledger does not, as after a `dvc pull`; with its times, where ``timings`` has them.

    What it cost counts against the dataset's caps, whoever paid: a ledger that was deleted must not open a spent budget again.
    """
    found = Restored()
    lines = zip(read_lines(path), read_timings(timings), strict=False)
    while chunk := list(islice(lines, CHUNK)):
        _restore_chunk(path, chunk, db, found, (dataset, f"restored {purse}"))
    return found


def keys_of(path: Path) -> frozenset[str]:
    """Keys that `restore` would settle from a `responses.jsonl`."""
    rows = ((object_of(text), text) for _, text in read_lines(path))
    return frozenset(
        row["key"] for row, text in rows if row is not None and is_key(row.get("key")) and _settles(row, text)
    )


def _settles(row: dict[str, Any], text: bytes) -> bool:
    kept = _kept(row, text)
    return kept is not None and kept[1] is not None


def body_of(text: bytes) -> bytes | None:
    """Bytes of the response in a line that `projection.line` wrote; None when there is no answer in it, or another program wrote it."""
    row = object_of(text)
    return None if row is None or (kept := _kept(row, text)) is None or kept[0] != "restored" else kept[1]


def _kept(row: dict[str, Any], text: bytes) -> tuple[str, bytes | None] | None:
    """State and bytes of what a row holds that was paid for."""
    if row.get("error") is None:
        body = _response(row, text) if isinstance(row.get("response"), dict) else None
        return None if body is None else ("restored", body)
    encoded = row.get("response_base64")
    try:
        body = base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else b""
    except ValueError:
        body = b""
    if body and is_spoilt(body):
        return "spoilt", body
    return ("failed", None) if dollars(row.get("cost_usd")) else None


def _response(row: dict[str, Any], text: bytes) -> bytes | None:
    head = (
        orjson.dumps({name: value for name, value in row.items() if name not in ("response", "response_base64")})[:-1]
        + RESPONSE
    )
    text = text.rstrip(b"\n")
    return text[len(head) : -1] if text.startswith(head) else None


def _restore_chunk(
    path: Path,
    chunk: list[tuple[tuple[int, bytes], Timing | None]],
    db: sqlite3.Connection,
    found: Restored,
    account: tuple[str, str],
) -> None:
    fresh: dict[str, Line] = {}
    for (number, text), timing in chunk:
        row = object_of(text)
        kept = None if row is None else _kept(row, text)
        if row is not None and kept is not None and is_key(row.get("key")):
            fresh[row["key"]] = Line(f"{path}:{number}", row, *kept, timing)
        elif row is None or (row.get("response") is not None and row.get("error") is None):
            found.strange.append(number)
    known, asked = settled(db, list(fresh)), asked_before(db, list(fresh))
    db.execute("BEGIN IMMEDIATE")
    for key, line in fresh.items():
        if key not in (asked if line.state == "failed" else known):
            insert(db, key, line, found, account)
    db.execute("COMMIT")


def insert(db: sqlite3.Connection, key: str, line: Line, found: Restored, account: tuple[str, str]) -> None:
    """Enter an answer, or a failure that was paid for, under a dataset and a purse; ``found`` counts it. Inside a transaction of the caller's."""
    attempt, result = next_attempt(db), next_result(db)
    figures = _figures(line.place, line.row, found)
    cost, tokens = figures[1], figures[3]
    sent_at, seconds = _times(key, line.timing)
    error = mapping(line.row.get("error"))
    why = (str(error.get("kind")), str(error.get("message"))) if error else ("ok", "")
    db.execute(_REQUEST, (attempt, key, *account, cost or 0, tokens or 0))
    db.execute(_RESULT, (result, attempt, line.state, cost or 0, tokens or 0, *why, sent_at, seconds, *figures))
    if line.body is not None:
        db.execute(_BODY, (result, hashlib.sha256(line.body).digest(), line.body))
        found.answers += 1
        found.unpriced += cost is None


def _figures(where: str, row: dict[str, Any], found: Restored) -> tuple[Any, ...]:
    """Requests, picodollars, tokens, provider, model, policy; what cannot be counts as unknown."""

    def checked(name: str, value: Any, *, fine: bool) -> Any:
        if value is None or fine:
            return value
        found.odd.append(f"{where}: {name} {show(value)}")
        return None

    requests = row.get("attempts")
    requests = checked("attempts", requests, fine=type(requests) is int and 0 <= requests <= _MOST_REQUESTS)
    usd = row.get("cost_usd")
    cost = dollars(checked("cost_usd", usd, fine=dollars(usd) is not None))
    texts = (
        checked(name, row.get(name), fine=isinstance(row.get(name), str)) for name in ("provider", "model", "policy")
    )
    usage = usage_of({**mapping(row.get("response")), "usage": row.get("usage")})
    return (
        1 if requests is None else requests,
        None if cost is None else to_pico(cost),
        usage.prompt,
        usage.completion,
        *texts,
    )


def _times(key: str, timing: Timing | None) -> tuple[float | None, float | None]:
    return (None, None) if timing is None or timing.key != key else (timing.sent_at, timing.seconds)


def is_key(value: Any) -> bool:
    """Whether a value has the form of a key."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
