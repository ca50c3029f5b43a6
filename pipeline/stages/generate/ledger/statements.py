"""Statements that write the ledger's account: requests, results, bodies."""

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

from pipeline.stages.generate.ledger.records import (
    BodyRecord,
    GenerationRecord,
    RequestRecord,
    ResultRecord,
    RouterBill,
)

_ROWS_PER_STATEMENT = 200
"""Below SQLite's limit of 32,766 values in a statement."""


def insert_requests(db: sqlite3.Connection, rows: Sequence[RequestRecord]) -> None:
    """Write requests that are about to be sent."""
    _insert(db, "INSERT INTO requests", RequestRecord._fields, rows)


def insert_results(db: sqlite3.Connection, rows: Sequence[tuple[int, ResultRecord]]) -> None:
    """Write results, each with its id."""
    _insert(db, "INSERT INTO results", ("id", *ResultRecord._fields), [(number, *row) for number, row in rows])


def insert_bodies(db: sqlite3.Connection, rows: Sequence[BodyRecord]) -> None:
    """Write the bytes that were received."""
    _insert(db, "INSERT INTO bodies", BodyRecord._fields, rows)


def insert_generations(db: sqlite3.Connection, rows: Sequence[GenerationRecord]) -> None:
    """Write the router's ids of requests that are in flight; the first id of a request wins."""
    _insert(db, "INSERT OR IGNORE INTO noted", GenerationRecord._fields, rows)


def _insert(
    db: sqlite3.Connection, verb_and_table: str, columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Write many rows in a statement: each statement takes the interpreter's lock from the event loop and back."""
    marks = "(" + ",".join("?" * len(columns)) + ")"
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        chunk = rows[start : start + _ROWS_PER_STATEMENT]
        statement = f"{verb_and_table}({','.join(columns)}) VALUES {','.join([marks] * len(chunk))}"
        db.execute(statement, list(chain.from_iterable(chunk)))


def settle_orphans(db: sqlite3.Connection) -> int:
    """Book requests whose process died before the answer came; return their number.

    They stay charged with the most that they can have cost: what they reserved, and the most that a request of their
    dataset was billed beyond that.
    """
    return db.execute(
        """INSERT INTO results(attempt, state, charge_pico, charge_tokens, kind, message)
        SELECT q.id, 'uncertain', q.most_pico + coalesce(e.pico, 0), q.most_tokens + coalesce(e.tokens, 0), 'killed',
          'the generator died before the answer came'
        FROM requests AS q LEFT JOIN results AS r ON r.attempt = q.id LEFT JOIN (
          SELECT q.purse AS purse, q.dataset AS dataset, max(0, max(r.charge_pico - q.most_pico)) AS pico,
            max(0, max(r.charge_tokens - q.most_tokens)) AS tokens
          FROM requests AS q JOIN results AS r ON r.attempt = q.id WHERE q.run > 0 GROUP BY q.purse, q.dataset
        ) AS e ON e.purse = q.purse AND e.dataset = q.dataset WHERE r.id IS NULL"""
    ).rowcount


def book_cost(db: sqlite3.Connection, attempt: int, bill: RouterBill) -> None:
    """Book what a request of unknown cost did cost, in place of the most that it could."""
    db.execute(
        """UPDATE results SET state=CASE state WHEN 'uncertain' THEN 'failed' ELSE state END,
        cost_pico=:cost_pico, charge_pico=:cost_pico, prompt_tokens=coalesce(:prompt_tokens, prompt_tokens),
        completion_tokens=coalesce(:completion_tokens, completion_tokens),
        charge_tokens=coalesce(:completion_tokens, charge_tokens),
        provider=coalesce(provider, :provider), model=coalesce(model, :model) WHERE attempt=:attempt""",
        {"attempt": attempt, **bill._asdict()},
    )
