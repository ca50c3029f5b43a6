"""responses.jsonl back into a ledger: the answers that another clone paid for."""

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from pipeline.artifacts import read_lines
from pipeline.conversation import show
from pipeline.generate.ledger import answered, next_attempt
from pipeline.generate.money import amount, billed_tokens, to_pico
from pipeline.generate.projection import RESPONSE, object_of
from pipeline.generate.source import CHUNK
from pipeline.generate.timing import read_timings
from pipeline.schema.timings import Timing

_INSERT = """INSERT INTO attempts(id, key, dataset, purse, run, state, requests, charge_pico, charge_tokens, cost_pico, prompt_tokens, completion_tokens, provider, model, policy, sent_at, seconds)
VALUES(?, ?, '', 'restored', 0, 'restored', ?, 0, 0, ?, ?, ?, ?, ?, ?, ?, ?)"""
_MOST_REQUESTS = 1_000_000
"""Requests that one prompt can have taken; a line that says more is wrong."""


@dataclass(slots=True)
class Restored:
    """What a file gave."""

    answers: int = 0
    """Answers that the ledger did not have."""
    odd: list[str] = field(default_factory=list)
    """Place and value of figures that cannot be: their answers were taken without them."""
    strange: list[int] = field(default_factory=list)
    """Lines that hold a response and were not written by this program: not taken."""

    def lines(self, path: Path) -> Iterator[str]:
        """Say it to people."""
        yield f"generate: took {self.answers} answers from {path} into the ledger"
        if self.odd:
            yield f"generate: {len(self.odd)} figures in it cannot be, and count as unknown; the first: {self.odd[0]}"
        if self.strange:
            yield (
                f"generate: {len(self.strange)} lines of it, the first {path}:{self.strange[0]}, hold a response, but not in the form that this program writes "
                "(was the file edited or formatted anew?); their prompts are asked again unless the ledger has their answers: `dvc checkout` brings the file back"
            )


def body_of(text: bytes) -> bytes | None:
    """Bytes of the response in a line that `projection.line` wrote; None when there is no answer in it, or another program wrote it."""
    row = object_of(text)
    return None if row is None else _body(row, text)


def _body(row: dict[str, Any], text: bytes) -> bytes | None:
    if row.get("error") is not None or not isinstance(row.get("response"), dict):
        return None
    head = orjson.dumps({name: value for name, value in row.items() if name not in ("response", "response_base64")})[:-1] + RESPONSE
    text = text.rstrip(b"\n")
    return text[len(head) : -1] if text.startswith(head) else None


def restore(path: Path, timings: Path, db: sqlite3.Connection) -> Restored:
    """Take answers into the ledger that a `responses.jsonl` holds and the ledger does not, as after a `dvc pull`; with their times, where ``timings`` has them.

    They count nothing against this clone's caps: another clone paid for them.
    """
    found = Restored()
    lines = zip(read_lines(path), read_timings(timings), strict=False)
    while chunk := list(islice(lines, CHUNK)):
        _restore_chunk(path, chunk, db, found)
    return found


def keys_of(path: Path) -> frozenset[str]:
    """Keys of the answers that `restore` would find in a `responses.jsonl`."""
    rows = ((object_of(text), text) for _, text in read_lines(path))
    return frozenset(row["key"] for row, text in rows if row is not None and _body(row, text) is not None and is_key(row.get("key")))


def _restore_chunk(path: Path, chunk: list[tuple[tuple[int, bytes], Timing | None]], db: sqlite3.Connection, found: Restored) -> None:
    fresh: dict[str, tuple[str, dict[str, Any], bytes, Timing | None]] = {}
    for (number, text), timing in chunk:
        row = object_of(text)
        body = None if row is None else _body(row, text)
        if row is not None and body is not None and is_key(row.get("key")):
            fresh[row["key"]] = (f"{path}:{number}", row, body, timing)
        elif row is None or (row.get("response") is not None and row.get("error") is None):
            found.strange.append(number)
    known = answered(db, list(fresh))
    place = next_attempt(db)
    db.execute("BEGIN IMMEDIATE")
    for key, (where, row, body, timing) in fresh.items():
        if key not in known:
            db.execute(_INSERT, (place, key, *_figures(where, row, found), *_times(key, timing)))
            db.execute("INSERT INTO bodies(attempt, sha256, body) VALUES(?, ?, ?)", (place, hashlib.sha256(body).digest(), body))
            db.execute("INSERT INTO answers(key, attempt) VALUES(?, ?)", (key, place))
            place += 1
            found.answers += 1
    db.execute("COMMIT")


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
    cost = amount(checked("cost_usd", usd, fine=amount(usd) is not None))
    texts = (checked(name, row.get(name), fine=isinstance(row.get(name), str)) for name in ("provider", "model", "policy"))
    return (1 if requests is None else requests, None if cost is None else to_pico(cost), *billed_tokens(row.get("usage")), *texts)


def _times(key: str, timing: Timing | None) -> tuple[float | None, float | None]:
    return (None, None) if timing is None or timing.key != key else (timing.sent_at, timing.seconds)


def is_key(value: Any) -> bool:
    """Whether a value has the form of a key."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
