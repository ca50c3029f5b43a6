"""Take the answers of a responses.jsonl into the ledger.

The file comes from another clone, or from this one before its ledger was lost.
"""

import base64
import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from pipeline.core.files.jsonl import read_lines
from pipeline.formats.completion.usage import usage_of
from pipeline.formats.completion.values import dollars, mapping
from pipeline.formats.schema.timings import Timing
from pipeline.model.conversation_checks import show
from pipeline.stages.generate.ledger.connection import transaction
from pipeline.stages.generate.ledger.queries import asked_keys, next_request_id, next_result_id, settled_keys
from pipeline.stages.generate.ledger.records import BodyRecord, RequestRecord, ResultRecord
from pipeline.stages.generate.ledger.statements import insert_bodies, insert_requests, insert_results
from pipeline.stages.generate.limits.money import to_pico
from pipeline.stages.generate.output.projection import RESPONSE, object_of
from pipeline.stages.generate.output.timing import read_timings
from pipeline.stages.generate.provider.classify import is_spoilt
from pipeline.stages.generate.requests.prompt_source import CHUNK

_MOST_REQUESTS = 1_000_000
"""Most requests that one prompt can have taken; a line with more is wrong."""

_PURSE_PREFIX = "restored "


class Account(NamedTuple):
    """The dataset and the purse under which an answer counts."""

    dataset: str
    purse: str

    @classmethod
    def restored(cls, dataset: str, purse: str) -> "Account":
        """Return the account for answers that another ledger paid for from that purse."""
        return cls(dataset, _PURSE_PREFIX + purse)


def paying_purse(purse: str) -> str:
    """Return the purse that paid for an answer, restored or not."""
    return purse.removeprefix(_PURSE_PREFIX)


@dataclass(slots=True)
class RestoreReport:
    """Counts of what was taken from a file, and of what was not."""

    answers: int = 0
    """Answers that the ledger did not have."""
    unpriced: int = 0
    """How many of them do not say what they cost."""
    impossible: list[str] = field(default_factory=list)
    """Place and value of impossible figures: their answers were taken without them."""
    foreign_lines: list[int] = field(default_factory=list)
    """Lines with a response that this program did not write: not taken."""

    def lines(self, path: Path) -> Iterator[str]:
        """Yield the report as text, a line at a time."""
        yield (
            f"generate: took {self.answers} answers from {path} into the ledger; what they cost counts against the caps"
        )
        if self.unpriced:
            yield f"generate: {self.unpriced} of them do not say what they cost, and count as free"
        if self.impossible:
            yield (
                f"generate: {len(self.impossible)} figures in it are impossible, and count as unknown; "
                f"the first: {self.impossible[0]}"
            )
        if self.foreign_lines:
            yield (
                f"generate: {len(self.foreign_lines)} lines of it, the first {path}:{self.foreign_lines[0]}, have a "
                "response, but not in the form that this program writes (was the file edited or formatted?); their "
                "prompts are asked again unless the ledger has their answers: `dvc checkout` brings the file back"
            )


class RestorableRow(NamedTuple):
    """A row that can be taken into the ledger."""

    place: str
    """File and line, for messages."""
    row: dict[str, Any]
    """The row's figures, by the names of responses.jsonl."""
    state: str
    """restored, spoilt, or failed: a failure that was paid for."""
    body: bytes | None
    timing: Timing | None


def restore(path: Path, timings: Path, db: sqlite3.Connection, account: Account) -> RestoreReport:
    """Take into the ledger what a `responses.jsonl` has and the ledger lacks, as after a `dvc pull`.

    Times come from ``timings`` where that file has them. What an answer cost counts against the caps, whoever paid:
    deleting a ledger must not open a spent budget again.
    """
    report = RestoreReport()
    lines = zip(read_lines(path), read_timings(timings), strict=False)
    while chunk := list(islice(lines, CHUNK)):
        _restore_chunk(path, chunk, db, report, account)
    return report


def restorable_keys(path: Path) -> frozenset[str]:
    """Return the keys that `restore` would settle from a `responses.jsonl`."""
    rows = ((object_of(text), text) for _, text in read_lines(path))
    return frozenset(
        row["key"] for row, text in rows if row is not None and is_key(row.get("key")) and _settles(row, text)
    )


def _settles(row: dict[str, Any], text: bytes) -> bool:
    paid = _paid_content(row, text)
    return paid is not None and paid[1] is not None


def body_of(text: bytes) -> bytes | None:
    """Return the response's bytes in a line that `projection.line` wrote.

    None when the line has no answer, or another program wrote it.
    """
    row = object_of(text)
    if row is None or (paid := _paid_content(row, text)) is None:
        return None
    state, body = paid
    return body if state == "restored" else None


def _paid_content(row: dict[str, Any], text: bytes) -> tuple[str, bytes | None] | None:
    """Return the state and the bytes of a row that was paid for, else None."""
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
    """Cut the response's own bytes out of a line; None unless the line has the form that `projection.line` writes."""
    rest = {name: value for name, value in row.items() if name not in ("response", "response_base64")}
    head = orjson.dumps(rest)[:-1] + RESPONSE
    text = text.rstrip(b"\n")
    return text[len(head) : -1] if text.startswith(head) else None


def _restore_chunk(
    path: Path,
    chunk: list[tuple[tuple[int, bytes], Timing | None]],
    db: sqlite3.Connection,
    report: RestoreReport,
    account: Account,
) -> None:
    restorable: dict[str, RestorableRow] = {}
    for (number, text), timing in chunk:
        row = object_of(text)
        paid = None if row is None else _paid_content(row, text)
        if row is not None and paid is not None and is_key(row.get("key")):
            restorable[row["key"]] = RestorableRow(f"{path}:{number}", row, *paid, timing)
        elif row is None or (row.get("response") is not None and row.get("error") is None):
            report.foreign_lines.append(number)
    settled, asked = settled_keys(db, list(restorable)), asked_keys(db, list(restorable))
    with transaction(db):
        for key, source in restorable.items():
            if key not in (asked if source.state == "failed" else settled):
                enter(db, key, source, report, account)


def enter(db: sqlite3.Connection, key: str, source: RestorableRow, report: RestoreReport, account: Account) -> None:
    """Enter an answer, or a failure that was paid for, under an account, and count it in ``report``.

    The caller holds a transaction.
    """
    request_id, result_id = next_request_id(db), next_result_id(db)
    result = _result_record(request_id, key, source, report)
    request = RequestRecord(
        id=request_id,
        key=key,
        dataset=account.dataset,
        purse=account.purse,
        run=0,
        most_pico=result.charge_pico,
        most_tokens=result.charge_tokens,
    )
    insert_requests(db, [request])
    insert_results(db, [(result_id, result)])
    if source.body is not None:
        insert_bodies(db, [BodyRecord(result_id, hashlib.sha256(source.body).digest(), source.body)])
        report.answers += 1
        report.unpriced += result.cost_pico is None


def _result_record(request_id: int, key: str, source: RestorableRow, report: RestoreReport) -> ResultRecord:
    """Build the result of a restored row; an impossible figure counts as unknown, and is named in ``report``."""
    row, timing = source.row, source.timing

    def checked(name: str, *, possible: bool) -> Any:
        value = row.get(name)
        if value is None or possible:
            return value
        report.impossible.append(f"{source.place}: {name} {show(value)}")
        return None

    requests = row.get("attempts")
    requests = checked("attempts", possible=type(requests) is int and 0 <= requests <= _MOST_REQUESTS)
    usd = dollars(checked("cost_usd", possible=dollars(row.get("cost_usd")) is not None))
    cost_pico = None if usd is None else to_pico(usd)
    usage = usage_of({**mapping(row.get("response")), "usage": row.get("usage")})
    error = mapping(row.get("error"))
    timed = timing is not None and timing.key == key
    return ResultRecord(
        attempt=request_id,
        state=source.state,
        charge_pico=cost_pico or 0,
        charge_tokens=usage.completion or 0,
        kind=str(error.get("kind")) if error else "ok",
        message=str(error.get("message")) if error else "",
        requests=1 if requests is None else requests,
        cost_pico=cost_pico,
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        provider=checked("provider", possible=isinstance(row.get("provider"), str)),
        model=checked("model", possible=isinstance(row.get("model"), str)),
        policy=checked("policy", possible=isinstance(row.get("policy"), str)),
        sent_at=timing.sent_at if timing is not None and timed else None,
        seconds=timing.seconds if timing is not None and timed else None,
    )


def is_key(value: Any) -> bool:
    """Return whether a value has the form of a key: 64 lower-case hex digits."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
