"""One thread that writes the ledger, many rows to a commit; a write is done when its commit is on the disk."""

import asyncio
import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pipeline.errors import AerieError
from pipeline.generate.ledger import store_error

_LINGER = 0.004
"""Seconds to gather rows for one commit: a commit costs a disk flush whatever it holds."""

_NEW = "INSERT INTO attempts(id, key, dataset, purse, run, state, charge_pico, charge_tokens, sent_at) VALUES(?, ?, ?, ?, ?, 'sent', ?, ?, ?)"
_SETTLE = """UPDATE attempts SET state=?, charge_pico=?, charge_tokens=?, cost_pico=?, prompt_tokens=?, completion_tokens=?, kind=?, message=?, status=?, provider=?,
model=?, policy=?, seconds=? WHERE id=?"""
_BODY = "INSERT INTO bodies(attempt, sha256, body) VALUES(?, ?, ?)"
_ANSWER = "INSERT OR REPLACE INTO answers(key, attempt) VALUES(?, ?)"


@dataclass(frozen=True, slots=True)
class Settlement:
    """How an attempt ended."""

    attempt: int
    key: str
    state: str
    values: tuple[Any, ...]
    """In the order of the UPDATE, from charge_pico to seconds."""
    body: bytes | None


class Writer:
    """Takes rows from the event loop and commits them in its own thread."""

    def __init__(self, db: sqlite3.Connection, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._db = db
        self._path = path
        self._loop = loop
        self._queue: SimpleQueue[tuple[str, Any, asyncio.Future[None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ledger")
        self._error: AerieError | None = None
        self._thread.start()

    def reserve(self, row: tuple[Any, ...]) -> "asyncio.Future[None]":
        """Write a request's row: id, key, dataset, purse, run, charge_pico, charge_tokens, sent_at."""
        return self._put("new", row)

    def settle(self, settlement: Settlement) -> "asyncio.Future[None]":
        """Write how an attempt ended, with the bytes that came."""
        return self._put("settle", settlement)

    def close(self) -> None:
        """Commit everything handed over so far, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _put(self, what: str, row: Any) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((what, row, future))
        return future

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            time.sleep(_LINGER)
            batch = [first]
            ended = False
            while not self._queue.empty():
                item = self._queue.get()
                if item is None:
                    ended = True
                    break
                batch.append(item)
            self._commit(batch)
            if ended:
                return

    def _commit(self, batch: list[tuple[str, Any, "asyncio.Future[None]"]]) -> None:
        if self._error is None:
            try:
                self._write(batch)
            except sqlite3.Error as error:
                self._error = store_error(self._path, error)
        resolve: Callable[[], None] = lambda: _resolve([future for _, _, future in batch], self._error)  # noqa: E731
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(resolve)

    def _write(self, batch: list[tuple[str, Any, "asyncio.Future[None]"]]) -> None:
        settled: list[Settlement] = [row for what, row, _ in batch if what == "settle"]
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany(_NEW, [row for what, row, _ in batch if what == "new"])
            self._db.executemany(_SETTLE, [(row.state, *row.values, row.attempt) for row in settled])
            self._db.executemany(_BODY, [(row.attempt, hashlib.sha256(row.body).digest(), row.body) for row in settled if row.body is not None])
            self._db.executemany(_ANSWER, [(row.key, row.attempt) for row in settled if row.state == "answer"])
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # a full disk has rolled it back already
                self._db.execute("ROLLBACK")
            raise


def _resolve(futures: "list[asyncio.Future[None]]", error: AerieError | None) -> None:
    for future in futures:
        if future.done():  # its worker was cancelled; the row is written all the same
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
