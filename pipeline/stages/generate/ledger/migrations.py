"""The ledger's tables, and the upgrades of files of earlier versions.

No upgrade loses anything that was paid for. Rows are only appended, in the order of the events. A row that is changed
later, or that is written in the order of the requests while answers arrive in another order, would cost a disk page of
its own.
"""

import sqlite3

VERSION = 3

EMPTY = 0
"""Version of a new file."""

_TABLES = """
CREATE TABLE requests(
  id INTEGER PRIMARY KEY, key TEXT NOT NULL, dataset TEXT NOT NULL, purse TEXT NOT NULL, run INTEGER NOT NULL,
  most_pico INTEGER NOT NULL, most_tokens INTEGER NOT NULL, written_at REAL);
CREATE TABLE results(
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state IN ('answer', 'restored', 'spoilt', 'failed', 'uncertain', 'dropped')),
  requests INTEGER NOT NULL DEFAULT 1,
  charge_pico INTEGER NOT NULL, charge_tokens INTEGER NOT NULL,
  cost_pico INTEGER, prompt_tokens INTEGER, completion_tokens INTEGER,
  kind TEXT, message TEXT, status INTEGER, provider TEXT, model TEXT, policy TEXT,
  sent_at REAL, seconds REAL, generation TEXT);
CREATE TABLE noted(attempt INTEGER PRIMARY KEY, generation TEXT NOT NULL);
"""
# requests: a request that was about to be sent, with the most that it can cost.
# results: how it ended; a request without a result is in flight, or was when its process died.
# state: spoilt is a whole answer that cannot be used; dropped is an answer that `store gc` removed.
# charge_*: what the request counts against the caps: the real cost, or the most that it can be while that is unknown.
# results.requests: number of requests that the row represents; above 1 only for an answer restored from another clone.
# generation: the router's id of a request of unknown cost, by which the router can be asked later.
# noted: the same id, known from the headers before the answer's last byte.

_BODIES = "CREATE TABLE bodies(id INTEGER PRIMARY KEY, sha256 BLOB NOT NULL, body BLOB NOT NULL);"
"""Bytes that were received. The ids are those of the results, so a new body always goes to the end of the table."""

_INDEXES = """
CREATE INDEX requests_by_key ON requests(key);
CREATE UNIQUE INDEX results_by_attempt ON results(attempt, state);
CREATE VIEW attempts AS SELECT q.id, q.key, q.dataset, q.purse, q.run,
  coalesce(r.state, 'sent') AS state, coalesce(r.requests, 1) AS requests,
  coalesce(r.charge_pico, q.most_pico) AS charge_pico, coalesce(r.charge_tokens, q.most_tokens) AS charge_tokens,
  r.cost_pico, r.prompt_tokens, r.completion_tokens, r.kind, r.message, r.status, r.provider, r.model, r.policy,
  coalesce(r.sent_at, q.written_at) AS sent_at, r.seconds,
  coalesce(r.generation, n.generation) AS generation, r.id AS result
FROM requests AS q LEFT JOIN results AS r ON r.attempt = q.id LEFT JOIN noted AS n ON n.attempt = q.id;
"""
# a request has one result; its state is in the index, so a look-up of keys does not read the row

_REST = """
CREATE TABLE runs(
  id INTEGER PRIMARY KEY, dataset TEXT NOT NULL, provider TEXT NOT NULL, started_at REAL NOT NULL, ended_at REAL);
CREATE TABLE projections(
  path TEXT PRIMARY KEY, plan TEXT NOT NULL, stat TEXT NOT NULL, sha256 TEXT NOT NULL, summary BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE endpoints(server TEXT PRIMARY KEY, document BLOB NOT NULL, fetched_at REAL NOT NULL) WITHOUT ROWID;
"""

_FROM_1 = "ALTER TABLE attempts ADD COLUMN generation TEXT;"

_FROM_2 = f"""
ALTER TABLE attempts RENAME TO old;
{_TABLES}
INSERT INTO requests SELECT id, key, dataset, purse, run, charge_pico, charge_tokens, sent_at FROM old ORDER BY id;
INSERT INTO results SELECT id, id,
  CASE WHEN state IN ('answer', 'restored')
    AND NOT EXISTS (SELECT 1 FROM answers AS w WHERE w.key = old.key AND w.attempt = old.id)
    THEN 'dropped' ELSE state END,
  requests, charge_pico, charge_tokens, cost_pico, prompt_tokens, completion_tokens, kind, message, status, provider,
  model, policy, sent_at, seconds, generation
  FROM old WHERE state <> 'sent' ORDER BY id;
INSERT INTO noted SELECT id, generation FROM old WHERE state = 'sent' AND generation IS NOT NULL;
ALTER TABLE bodies RENAME COLUMN attempt TO id;
DROP TABLE answers;
DROP TABLE old;
{_INDEXES}
"""  # noqa: S608
# in version 2 a result and its body had the id of their request: both keep it

_STEPS = {EMPTY: _REST + _BODIES + _TABLES + _INDEXES, 1: _FROM_1 + _FROM_2, 2: _FROM_2}
"""Version that can be upgraded to the statements that do it."""


def version_of(db: sqlite3.Connection) -> int:
    """Return the version of an open file."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def upgradable(version: int) -> bool:
    """Return whether a file of that version can be brought up to this one."""
    return version in _STEPS


def upgrade(db: sqlite3.Connection) -> None:
    """Bring a file up to this version, in one transaction. The caller must be the ledger's only writer."""
    db.executescript(f"BEGIN IMMEDIATE; {_STEPS[version_of(db)]} PRAGMA user_version={VERSION}; COMMIT;")
