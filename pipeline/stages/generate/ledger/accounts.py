"""Sums over the ledger: money, tokens, latencies and rates. Each takes an open connection."""

import sqlite3
from array import array
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from pipeline.stages.generate.ledger.records import NO_CHARGE, Charge


def charged(db: sqlite3.Connection, purse: str, dataset: str | None = None) -> Charge:
    """Return what counts against the caps of a purse, for one dataset or for all, restored answers included."""
    query = """SELECT coalesce(sum(charge_pico), 0), coalesce(sum(charge_tokens), 0) FROM attempts
    WHERE purse IN (:purse, 'restored ' || :purse) AND (:dataset IS NULL OR dataset=:dataset)"""
    return Charge(*db.execute(query, {"purse": purse, "dataset": dataset}).fetchone())


def largest_excesses(db: sqlite3.Connection, purse: str, dataset: str, model: str) -> dict[str | None, Charge]:
    """Return for each provider that billed more than a request for this model had reserved the most beyond it.

    Requests without a known bill do not count: they are charged with what was known before.
    """
    query = """SELECT r.provider, max(r.charge_pico - q.most_pico), max(r.charge_tokens - q.most_tokens)
    FROM requests AS q JOIN results AS r ON r.attempt = q.id JOIN runs ON runs.id = q.run
    WHERE q.purse=:purse AND q.dataset=:dataset AND runs.provider=:model
      AND (r.cost_pico IS NOT NULL OR r.completion_tokens IS NOT NULL)
      AND (r.charge_tokens > q.most_tokens OR r.charge_pico > q.most_pico)
    GROUP BY r.provider"""
    rows = db.execute(query, {"purse": purse, "dataset": dataset, "model": model})
    return {provider: NO_CHARGE.most(Charge(pico, tokens)) for provider, pico, tokens in rows}


class DatasetAccount(NamedTuple):
    """Requests, answers and money of one dataset and purse."""

    dataset: str
    """Empty for answers that came from another clone."""
    purse: str
    sent: int
    answers: int
    failed: int
    open: int
    """Requests whose answer never came."""
    tokens: int
    """Completion tokens."""
    spent_pico: int
    uncertain_pico: int
    """Most that the requests of unknown cost can have cost."""


_ACCOUNT_COLUMNS = {
    "dataset": "dataset",
    "purse": "purse",
    "sent": "sum(requests * (kind IS NOT 'unsent'))",  # `unsent`: the row was written, the request never left
    "answers": "sum(state IN ('answer', 'restored'))",
    "failed": "sum(state IN ('failed', 'spoilt') AND kind IS NOT 'unsent')",
    "open": "sum(state IN ('uncertain', 'sent'))",
    "tokens": "sum(coalesce(completion_tokens, 0))",
    "spent_pico": "sum(coalesce(cost_pico, 0))",
    "uncertain_pico": "sum(CASE WHEN cost_pico IS NULL THEN charge_pico ELSE 0 END)",
}
"""Field of `DatasetAccount` to its SQL expression."""


def dataset_accounts(db: sqlite3.Connection) -> list[DatasetAccount]:
    """Return the account of each dataset and purse, in the order of purse and dataset."""
    columns = ", ".join(_ACCOUNT_COLUMNS[field] for field in DatasetAccount._fields)
    rows = db.execute(f"SELECT {columns} FROM attempts GROUP BY dataset, purse ORDER BY purse, dataset")  # noqa: S608
    return [DatasetAccount._make(row) for row in rows]


class UnknownCost(NamedTuple):
    """A request of unknown cost that the router can be asked about."""

    attempt: int
    generation: str
    charge_pico: int


_REAL_UNKNOWN = """purse='real' AND (
state='uncertain' OR (state IN ('answer', 'spoilt', 'failed', 'dropped') AND cost_pico IS NULL))"""


def unknown_costs(db: sqlite3.Connection) -> list[UnknownCost]:
    """Return the requests of real money whose cost is unknown and whose id at the router is known."""
    rows = db.execute(
        f"""SELECT id, generation, charge_pico FROM attempts
        WHERE generation IS NOT NULL AND {_REAL_UNKNOWN} ORDER BY id"""  # noqa: S608
    )
    return [UnknownCost._make(row) for row in rows]


def untraceable_costs(db: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of real requests whose cost and id are unknown, and the picodollars booked for them."""
    count, pico = db.execute(
        f"""SELECT count(*), coalesce(sum(charge_pico), 0) FROM attempts
        WHERE generation IS NULL AND {_REAL_UNKNOWN}"""  # noqa: S608
    ).fetchone()
    return count, pico


def latencies(db: sqlite3.Connection, run: int) -> Iterator[tuple[str, "array[float]"]]:
    """Yield each provider of a run with the sorted seconds of its answers."""
    rows = db.execute(
        """SELECT coalesce(r.provider, '?') AS name, r.seconds
        FROM requests AS q JOIN results AS r ON r.attempt = q.id
        WHERE q.run=? AND r.state='answer' ORDER BY name, r.seconds""",
        (run,),
    )
    for provider, group in groupby(rows, itemgetter(0)):
        yield provider, array("d", (row[1] for row in group))


def usual_tokens(db: sqlite3.Connection, dataset: str) -> float | None:
    """Return the mean completion tokens of a dataset's answers, or None before the first answer."""
    (mean,) = db.execute(
        "SELECT avg(completion_tokens) FROM attempts WHERE dataset=? AND state='answer'", (dataset,)
    ).fetchone()
    return None if mean is None else float(mean)


def usual_rate(db: sqlite3.Connection, model: str) -> float | None:
    """Return the answers a second in the model's last run that gave any, or None before the first such run."""
    query = """SELECT count(*) / max(r.ended_at - r.started_at, 1e-3)
    FROM runs AS r JOIN attempts AS a ON a.run = r.id AND a.state = 'answer'
    WHERE r.provider = ? AND r.ended_at IS NOT NULL GROUP BY r.id ORDER BY r.id DESC LIMIT 1"""
    row = db.execute(query, (model,)).fetchone()
    return None if row is None else float(row[0])
