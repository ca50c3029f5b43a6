"""The ledger's file: upgrades of older versions, and writes that reach the disk."""

import dataclasses
import hashlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import ArtifactError, BusyError
from pipeline.stages.generate.ledger.accounts import charged
from pipeline.stages.generate.ledger.connection import FILE, connect, opened
from pipeline.stages.generate.ledger.lock import only_writer
from pipeline.stages.generate.ledger.queries import (
    iterate_answers,
    latest_attempts,
    next_request_id,
    next_result_id,
    settled_keys,
)
from pipeline.stages.generate.ledger.records import Settlement
from pipeline.stages.generate.ledger.statements import settle_orphans
from pipeline.stages.generate.ledger.writer import QueuedWrite, Writer
from tests.stages.generate.chat_server import ScriptedReply, completion, good
from tests.stages.generate.conftest import Bench

SECOND = """
CREATE TABLE runs(
  id INTEGER PRIMARY KEY, dataset TEXT NOT NULL, provider TEXT NOT NULL, started_at REAL NOT NULL, ended_at REAL);
CREATE TABLE attempts(
  id INTEGER PRIMARY KEY, key TEXT NOT NULL, dataset TEXT NOT NULL, purse TEXT NOT NULL, run INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state IN ('sent', 'answer', 'failed', 'uncertain', 'restored')),
  requests INTEGER NOT NULL DEFAULT 1,
  charge_pico INTEGER NOT NULL, charge_tokens INTEGER NOT NULL,
  cost_pico INTEGER, prompt_tokens INTEGER, completion_tokens INTEGER,
  kind TEXT, message TEXT, status INTEGER, provider TEXT, model TEXT, policy TEXT,
  sent_at REAL, seconds REAL, generation TEXT);
CREATE INDEX attempts_by_key ON attempts(key, id);
CREATE TABLE bodies(attempt INTEGER PRIMARY KEY, sha256 BLOB NOT NULL, body BLOB NOT NULL);
CREATE TABLE answers(key TEXT PRIMARY KEY, attempt INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE projections(
  path TEXT PRIMARY KEY, plan TEXT NOT NULL, stat TEXT NOT NULL, sha256 TEXT NOT NULL, summary BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE endpoints(server TEXT PRIMARY KEY, document BLOB NOT NULL, fetched_at REAL NOT NULL) WITHOUT ROWID;
PRAGMA user_version=2;
"""
"""The tables of version 2, as that version made them."""


def write_second(folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write a ledger of version 2 with those attempts; give them as the ledger shows them."""
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / FILE) as db:
        db.executescript(SECOND)
        for number, row in enumerate(rows, 1):
            full = {
                "id": number,
                "dataset": "some",
                "purse": "real",
                "run": 1,
                "charge_pico": 7,
                "charge_tokens": 3,
                **row,
            }
            body, answers = full.pop("body", None), full.pop("answers", True)
            db.execute(
                f"INSERT INTO attempts({', '.join(full)}) VALUES({', '.join('?' * len(full))})", list(full.values())
            )
            if body is not None:
                db.execute("INSERT INTO bodies VALUES(?, ?, ?)", (number, hashlib.sha256(body).digest(), body))
            if row["state"] in ("answer", "restored") and answers:
                db.execute("INSERT INTO answers VALUES(?, ?)", (row["key"], number))
        cursor = db.execute("SELECT * FROM attempts ORDER BY id")
        shown = [dict(zip((column[0] for column in cursor.description), row, strict=True)) for row in cursor]
    db.close()
    return shown


ROWS: list[dict[str, Any]] = [
    {"key": "a", "state": "failed", "kind": "http_500", "message": "no", "cost_pico": 2, "body": b"no"},
    {
        "key": "a",
        "state": "answer",
        "cost_pico": 5,
        "provider": "Alpha",
        "model": "m",
        "sent_at": 1.5,
        "seconds": 2.5,
        "kind": "ok",
        "body": b"{}",
    },
    {"key": "b", "state": "sent", "generation": "gen-7"},
    {
        "key": "c",
        "state": "restored",
        "requests": 4,
        "charge_pico": 0,
        "purse": "restored",
        "dataset": "",
        "body": b"[]",
    },
    {"key": "d", "state": "uncertain", "kind": "cut_short", "generation": "gen-8", "policy": "odd", "status": 200},
    {"key": "e", "state": "answer", "cost_pico": 1, "answers": False},
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("readonly", [True, False])
def test_an_older_ledger_is_brought_up_to_date_and_keeps_every_row(
    tmp_path: Path, version: int, readonly: bool
) -> None:
    folder = tmp_path / "store"
    before = write_second(folder, ROWS)
    if version == 1:
        with sqlite3.connect(folder / FILE) as db:
            db.executescript("ALTER TABLE attempts DROP COLUMN generation; PRAGMA user_version=1;")
        before = [{**row, "generation": None} for row in before]
    with opened(folder, readonly=readonly) as db:
        cursor = db.execute("SELECT * FROM attempts ORDER BY id")
        names = [column[0] for column in cursor.description]
        after = [{**dict(zip(names, row, strict=True)), "result": None} for row in cursor]
        assert after == [
            {**row, "state": "dropped" if row["key"] == "e" else row["state"], "result": None} for row in before
        ]
        assert settled_keys(db, ["a", "b", "c", "d", "e"]) == {"a": 2, "c": 4}
        assert [(key, body) for key, _, body in iterate_answers(db)] == [("a", b"{}"), ("c", b"[]")]
        assert charged(db, "real").pico == 35
        found = latest_attempts(db, ["a", "b", "c", "d", "e"])
        assert {key: (one.state, one.requests, one.cost_pico, one.body) for key, one in found.items()} == {
            "a": ("answer", 2, 7, b"{}"),
            "b": ("sent", 1, 0, None),
            "c": ("restored", 4, 0, b"[]"),
            "d": ("uncertain", 1, 0, None),
        }
        assert settle_orphans(db) == 1
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert (next_request_id(db), next_result_id(db)) == (7, 8)


def test_a_generator_goes_on_with_an_older_ledger_and_pays_nothing_again(bench: Bench) -> None:
    (row,) = bench.ask("a")
    (one,) = bench.attempts()
    body = good().body
    for path in (bench.folder / "store").iterdir():
        path.unlink()
    (bench.folder / "store").rmdir()
    (bench.build / "responses.jsonl").unlink()
    old = {
        name: one[name]
        for name in (
            "key",
            "state",
            "charge_pico",
            "charge_tokens",
            "cost_pico",
            "kind",
            "message",
            "provider",
            "model",
            "seconds",
            "sent_at",
        )
    }
    write_second(bench.folder / "store", [{**old, "body": body}])
    assert bench.ask("a", "b") == [row, {**row, "id": "p1", "key": bench.rows()[1]["key"]}]
    assert bench.rows()[0]["response"] == completion()
    assert bench.server.asked == ["a", "b"]


def test_an_older_ledger_in_use_is_left_alone(tmp_path: Path) -> None:
    write_second(tmp_path / "store", ROWS)
    with (
        only_writer(tmp_path / "store", wait=False, say=print),
        pytest.raises(BusyError, match="schema 2, this code reads 3 and cannot bring it up to date now"),
    ):
        connect(tmp_path / "store", readonly=True)


def test_a_ledger_of_a_later_version_is_refused(tmp_path: Path) -> None:
    write_second(tmp_path / "store", [])
    with sqlite3.connect(tmp_path / "store" / FILE) as db:
        db.execute("PRAGMA user_version=9")
    with pytest.raises(ArtifactError, match="schema 9, this code reads 3"):
        connect(tmp_path / "store")


def test_a_turn_lasts_until_the_outcome_is_on_the_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a kill loses at most the requests that may be in flight: while the disk takes no outcome, none is sent."""
    at_once, release, commit = 16, threading.Event(), Writer._commit

    def held(writer: Writer, batch: list[QueuedWrite]) -> None:
        if any(isinstance(item.record, Settlement) for item in batch) and not release.is_set():
            threading.Timer(0.3, release.set).start()  # long after the others have been answered
            release.wait()
            asked.append(len(bench.server.asked))
        commit(writer, batch)

    def script(_text: str, _nth: int) -> ScriptedReply:
        """Answer the first when all that may be in flight have been asked."""
        if len(bench.server.asked) == at_once - 1:
            all_asked.set()
        return dataclasses.replace(good(), hold=all_asked)

    asked: list[int] = []
    all_asked = threading.Event()
    bench.server.script = script
    monkeypatch.setattr(Writer, "_commit", held)
    bench.provider = {"concurrency": at_once}
    rows = bench.ask(*map(str, range(3 * at_once)))
    assert asked == [at_once]
    assert all(row["error"] is None for row in rows)


def test_a_disk_too_full_for_notes_still_gives_the_answers(bench: Bench) -> None:
    """The notes on runs and written files only save a later run some work; paid answers are written without them."""
    bench.ask("a")
    with opened(bench.folder / "store") as db:
        for event in ("UPDATE OF ended_at ON runs", "INSERT ON projections"):
            db.execute(
                f"CREATE TRIGGER \"full {event}\" BEFORE {event} BEGIN SELECT json('['); END"
            )  # an OperationalError, as a full disk is
    assert [row["error"] for row in bench.ask("a", "b")] == [None, None]
    with opened(bench.folder / "store") as db:
        assert db.execute("SELECT count(*) FROM runs WHERE ended_at IS NULL").fetchone() == (1,)
        for event in ("UPDATE OF ended_at ON runs", "INSERT ON projections"):
            db.execute(f'DROP TRIGGER "full {event}"')
    assert [row["error"] for row in bench.run()] == [None, None]
    assert bench.server.asked == ["a", "b"]
