"""Look-ups of keys and answers in the ledger. Each takes an open connection."""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.stages.generate.ledger.records import LatestAttempt, StoredAnswer

SETTLED_STATES = "('answer', 'restored', 'spoilt')"
"""SQL list of the states after which a prompt is not asked again."""


def settled_keys(db: sqlite3.Connection, keys: Sequence[str]) -> dict[str, int]:
    """Return those of ``keys`` that are not asked again, each with the id of the request that settled it."""
    return dict(
        db.execute(
            f"""SELECT q.key, q.id FROM requests AS q JOIN results AS r ON r.attempt = q.id
            WHERE q.key IN ({_marks(keys)}) AND r.state IN {SETTLED_STATES}""",  # noqa: S608
            keys,
        )
    )


def asked_keys(db: sqlite3.Connection, keys: Sequence[str]) -> set[str]:
    """Return those of ``keys`` that have a request, however it ended."""
    return {key for (key,) in db.execute(f"SELECT key FROM requests WHERE key IN ({_marks(keys)})", keys)}  # noqa: S608


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def next_request_id(db: sqlite3.Connection) -> int:
    """Return the first id after those of all requests."""
    (last,) = db.execute("SELECT coalesce(max(id), 0) FROM requests").fetchone()
    return int(last) + 1


def next_result_id(db: sqlite3.Connection) -> int:
    """Return the first id after those of all results, and so of all bodies."""
    (last,) = db.execute("SELECT coalesce(max(id), 0) FROM results").fetchone()
    return int(last) + 1


_UNKNOWN_COST = "(state='uncertain' OR (state IN ('answer', 'spoilt', 'dropped') AND cost_pico IS NULL))"

_ATTEMPT_COLUMNS = {
    "id": "q.id",
    "state": "coalesce(r.state, 'sent')",
    "kind": "r.kind",
    "message": "r.message",
    "provider": "r.provider",
    "model": "r.model",
    "policy": "r.policy",
    "body": "b.body",
    "requests": "coalesce(r.requests, 1) * (r.kind IS NOT 'unsent')",
    "cost_pico": "coalesce(r.cost_pico, 0)",
    "uncertain": f"coalesce({_UNKNOWN_COST}, 0)",
    "uncertain_pico": f"iif({_UNKNOWN_COST}, r.charge_pico, 0)",
    "prompt_tokens": "r.prompt_tokens",
    "completion_tokens": "r.completion_tokens",
    "sent_at": "r.sent_at",
    "seconds": "r.seconds",
}
"""Field of `LatestAttempt` to its SQL expression."""

_ATTEMPTS = f"""SELECT q.key, {", ".join(_ATTEMPT_COLUMNS[field] for field in LatestAttempt._fields)}
FROM requests AS q LEFT JOIN results AS r ON r.attempt = q.id LEFT JOIN bodies AS b ON b.id = r.id
WHERE q.key IN ({{marks}})"""  # noqa: S608


def latest_attempts(db: sqlite3.Connection, keys: Sequence[str]) -> dict[str, LatestAttempt]:
    """Return for each key that was ever asked the request that settled it, else its last failure.

    A key whose answer `store gc` dropped is left out.
    """
    latest: dict[str, LatestAttempt] = {}
    for key, *columns in db.execute(_ATTEMPTS.format(marks=_marks(keys)), keys):
        attempt = LatestAttempt(*columns)
        latest[key] = _merged(latest[key], attempt) if key in latest else attempt
    return {key: attempt for key, attempt in latest.items() if attempt.state != "dropped"}


def _merged(one: LatestAttempt, other: LatestAttempt) -> LatestAttempt:
    """Return the attempt that settled the key or came last, with the requests and the money of both."""
    last = max(one, other, key=lambda attempt: (attempt.settled, attempt.id))
    return last._replace(
        requests=one.requests + other.requests,
        cost_pico=one.cost_pico + other.cost_pico,
        uncertain=one.uncertain + other.uncertain,
        uncertain_pico=one.uncertain_pico + other.uncertain_pico,
    )


class AnswerBytes(NamedTuple):
    """The bytes of an answer, with the digest that was written with them."""

    key: str
    sha256: bytes
    body: bytes


def iterate_answers(db: sqlite3.Connection) -> Iterator[AnswerBytes]:
    """Yield every answer, in key order."""
    rows = db.execute(
        """SELECT q.key, b.sha256, b.body
        FROM requests AS q JOIN results AS r ON r.attempt = q.id JOIN bodies AS b ON b.id = r.id
        WHERE r.state IN ('answer', 'restored') ORDER BY q.key"""
    )
    yield from map(AnswerBytes._make, rows)


def keys_without_body(db: sqlite3.Connection) -> list[str]:
    """Return the settled keys whose body is missing, in order."""
    rows = db.execute(
        f"""SELECT q.key FROM requests AS q JOIN results AS r ON r.attempt = q.id LEFT JOIN bodies AS b ON b.id = r.id
        WHERE r.state IN {SETTLED_STATES} AND b.id IS NULL ORDER BY q.key"""  # noqa: S608
    )
    return [key for (key,) in rows]


_ANSWER_TABLES = {"key": "q", "dataset": "q", "purse": "q", "sha256": "b", "body": "b"}
"""Field of `StoredAnswer` to its table's alias; all others are columns of `results`, alias r."""

_STORED_ANSWER = f"""
SELECT {", ".join(f"{_ANSWER_TABLES.get(field, 'r')}.{field}" for field in StoredAnswer._fields)}
FROM results AS r CROSS JOIN requests AS q ON q.id = r.attempt CROSS JOIN bodies AS b ON b.id = r.id
WHERE r.id = ? AND r.state IN {SETTLED_STATES}"""  # noqa: S608


def readable_answers(db: sqlite3.Connection, unreadable: list[str]) -> Iterator[StoredAnswer]:
    """Yield every answer that can be read, also out of a damaged file; name the others in ``unreadable``.

    Each answer is looked up by itself and without an index, so a damaged page costs only the answers on it.
    """
    try:
        end = next_result_id(db)
    except sqlite3.DatabaseError:  # each result has a request of its own, so there are not more results than requests
        end = next_request_id(db)
    for number in range(1, end):
        try:
            yield from map(StoredAnswer._make, db.execute(_STORED_ANSWER, (number,)).fetchall())
        except sqlite3.DatabaseError as error:
            unreadable.append(f"result {number}: {error}")
