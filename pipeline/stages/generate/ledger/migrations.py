"""The tables of the ledger, and how a file of an earlier version becomes one of this. Nothing that was paid for is lost on the way.

What is written for each request is only ever appended, in the order of the events: rows that are changed later, or that are
written in the order of their requests while answers come in any, would each cost a page of the disk.
"""

import sqlite3

VERSION = 3

EMPTY = 0
"""Version of a file that was just made."""

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
  kind TEXT, message TEXT, status INTEGER, provider TEXT, model TEXT, policy TEXT, sent_at REAL, seconds REAL, generation TEXT);
CREATE TABLE noted(attempt INTEGER PRIMARY KEY, generation TEXT NOT NULL);
"""
# requests: what was about to be sent, with the most that it can cost. results: how it ended; a request without one is in flight, or was when its process died.
# state: spoilt is an answer that came whole and cannot be used; dropped is one that `store gc` took away.
# charge_*: what the request counts against the caps: the real cost, or still the most when that is unknown.
# results.requests: how many requests the row stands for; more than 1 only for an answer restored from another clone's responses.jsonl.
# generation: the router's id of a request whose cost is not known, by which it can be asked later; noted: the same, known before the answer's last byte.

_BODIES = "CREATE TABLE bodies(id INTEGER PRIMARY KEY, sha256 BLOB NOT NULL, body BLOB NOT NULL);"
"""Bytes that came; ids are those of results, so that a body is written at the table's end however late its request was sent."""

_INDEXES = """
CREATE INDEX requests_by_key ON requests(key);
CREATE UNIQUE INDEX results_by_attempt ON results(attempt, state);
CREATE VIEW attempts AS SELECT q.id, q.key, q.dataset, q.purse, q.run, coalesce(r.state, 'sent') AS state, coalesce(r.requests, 1) AS requests,
  coalesce(r.charge_pico, q.most_pico) AS charge_pico, coalesce(r.charge_tokens, q.most_tokens) AS charge_tokens,
  r.cost_pico, r.prompt_tokens, r.completion_tokens, r.kind, r.message, r.status, r.provider, r.model, r.policy, coalesce(r.sent_at, q.written_at) AS sent_at, r.seconds,
  coalesce(r.generation, n.generation) AS generation, r.id AS result
FROM requests AS q LEFT JOIN results AS r ON r.attempt = q.id LEFT JOIN noted AS n ON n.attempt = q.id;
"""
# a request has one result; its state is in the index so that a look-up of keys reads no row

_REST = """
CREATE TABLE runs(id INTEGER PRIMARY KEY, dataset TEXT NOT NULL, provider TEXT NOT NULL, started_at REAL NOT NULL, ended_at REAL);
CREATE TABLE projections(path TEXT PRIMARY KEY, plan TEXT NOT NULL, stat TEXT NOT NULL, sha256 TEXT NOT NULL, summary BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE endpoints(server TEXT PRIMARY KEY, document BLOB NOT NULL, fetched_at REAL NOT NULL) WITHOUT ROWID;
"""

_FROM_1 = "ALTER TABLE attempts ADD COLUMN generation TEXT;"

_FROM_2 = f"""
ALTER TABLE attempts RENAME TO old;
{_TABLES}
INSERT INTO requests SELECT id, key, dataset, purse, run, charge_pico, charge_tokens, sent_at FROM old ORDER BY id;
INSERT INTO results SELECT id, id,
  CASE WHEN state IN ('answer', 'restored') AND NOT EXISTS (SELECT 1 FROM answers AS w WHERE w.key = old.key AND w.attempt = old.id) THEN 'dropped' ELSE state END,
  requests, charge_pico, charge_tokens, cost_pico, prompt_tokens, completion_tokens, kind, message, status, provider, model, policy, sent_at, seconds, generation
  FROM old WHERE state <> 'sent' ORDER BY id;
INSERT INTO noted SELECT id, generation FROM old WHERE state = 'sent' AND generation IS NOT NULL;
ALTER TABLE bodies RENAME COLUMN attempt TO id;
DROP TABLE answers;
DROP TABLE old;
{_INDEXES}
"""  # noqa: S608
# there a result had the number of its request, and so had its body: both keep it

_STEPS = {EMPTY: _REST + _BODIES + _TABLES + _INDEXES, 1: _FROM_1 + _FROM_2, 2: _FROM_2}
"""From each version that can be brought up to this one, what makes it so."""


def version_of(db: sqlite3.Connection) -> int:
    """Version of an open file."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def upgradable(version: int) -> bool:
    """Whether a file of that version can be brought up to this one."""
    return version in _STEPS


def upgrade(db: sqlite3.Connection) -> None:
    """Bring a file up to this version, in one transaction. Only for who holds the ledger alone."""
    db.executescript(f"BEGIN IMMEDIATE; {_STEPS[version_of(db)]} PRAGMA user_version={VERSION}; COMMIT;")
