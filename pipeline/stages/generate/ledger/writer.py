"""One thread that writes the ledger, many rows to a commit; a write is done when its commit is on the disk."""

import asyncio
import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from pipeline.core.errors import AerieError
from pipeline.stages.generate.ledger.ledger import Attempt, is_full, next_result, store_error

_LINGER = 2e-5
"""Seconds a request in flight to gather rows for one commit: 20 ms at 1,000. Requests hold their turns meanwhile, but a commit costs a disk flush, and takes the interpreter's lock from the event loop some ten times, whatever it holds."""
_LONGEST_LINGER = 0.05

_CHUNK = 200
"""Rows of one statement, below SQLite's limit of 32,766 values."""

_REQUEST = "INSERT INTO requests(id, key, dataset, purse, run, most_pico, most_tokens, written_at) VALUES {rows}"
_RESULT = """INSERT INTO results(id, attempt, state, charge_pico, charge_tokens, cost_pico, prompt_tokens, completion_tokens,
kind, message, status, provider, model, policy, sent_at, seconds, generation) VALUES {rows}"""
_BODY = "INSERT INTO bodies(id, sha256, body) VALUES {rows}"
_NOTE = "INSERT OR IGNORE INTO noted(attempt, generation) VALUES {rows}"


class Settlement(NamedTuple):
    """How an attempt ended."""

    attempt: int
    state: str
    values: tuple[Any, ...]
    """In the order of the table, from charge_pico to generation."""
    body: bytes | None

    def as_attempt(self) -> Attempt:
        """As the ledger would give it."""
        charged, _, cost, prompt_tokens, tokens, kind, message, _, provider, model, policy, sent_at, seconds, _ = (
            self.values
        )
        return Attempt(
            self.attempt,
            self.state,
            kind,
            message,
            provider,
            model,
            policy,
            self.body,
            requests=1,
            cost_pico=cost or 0,
            uncertain=int(cost is None),
            uncertain_pico=charged if cost is None else 0,
            prompt_tokens=prompt_tokens,
            completion_tokens=tokens,
            sent_at=sent_at,
            seconds=seconds,
        )


_HELD = 2047
"""Bytes that hashlib takes without letting go of the interpreter's lock."""
_HELD_BODIES = 1 << 16
"""Longest body that is hashed under the lock: to let it go, and wait until the event loop gives it back, takes longer."""


def digest_of(body: bytes) -> bytes:
    """SHA-256 of a body."""
    if not _HELD < len(body) <= _HELD_BODIES:
        return hashlib.sha256(body).digest()
    digest, view = hashlib.sha256(), memoryview(body)
    for start in range(0, len(body), _HELD):
        digest.update(view[start : start + _HELD])
    return digest.digest()


_Item = tuple[str, Any, "asyncio.Future[None] | None"]
"""What is to be done, with what, and who waits for it."""


class Writer:
    """Takes rows from the event loop and commits them in its own thread."""

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        *,
        in_flight: int,
        refusal: Callable[[], AerieError | None],
    ) -> None:
        """``refusal`` says, in this thread, why no request may be written now."""
        self._refusal = refusal
        self._linger = min(_LONGEST_LINGER, _LINGER * in_flight)
        self._db = db
        self._path = path
        self._next_result = next_result(db)
        self._loop = loop
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ledger")
        self._error: AerieError | None = None
        """Why no request is written any more."""
        self._broken = False
        """Whether nothing else can be written either."""
        self._thread.start()

    def reserve(self, row: tuple[Any, ...]) -> "asyncio.Future[None]":
        """Write a request's row: id, key, dataset, purse, run, most_pico, most_tokens, written_at."""
        return self._put("request", row)

    def settle(self, settlement: Settlement) -> "asyncio.Future[None]":
        """Write how an attempt ended, with the bytes that came."""
        return self._put("result", settlement)

    def note(self, attempt: int, generation: str) -> None:
        """Write under which id the router knows a request whose answer is still on its way. Nobody waits for it."""
        self._queue.put(("note", (attempt, generation), None))

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
            time.sleep(self._linger)
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

    def _commit(self, batch: list[_Item]) -> None:
        """Commit a batch. Once that fails no request is written any more, but what came is, each by itself: it is paid for, and may still fit."""
        if self._error is None and any(what == "request" for what, _, _ in batch):
            self._error = self._refusal()
        if self._error is None:
            self._error = self._try(batch)
            if self._error is None:
                self._tell(batch, None)
                return
        for item in batch:
            self._tell([item], self._error if self._broken or item[0] == "request" else self._try([item]))

    def _try(self, batch: list[_Item]) -> AerieError | None:
        """Commit some items, or say why not."""
        try:
            self._write(batch)
        except sqlite3.Error as error:
            self._broken = not is_full(error)
            return store_error(self._path, error)
        return None

    def _tell(self, batch: list[_Item], error: AerieError | None) -> None:
        """Let those go on who wait for these items."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_resolve, [future for _, _, future in batch if future is not None], error)

    def _write(self, batch: list[_Item]) -> None:
        results = list(enumerate((row for what, row, _ in batch if what == "result"), self._next_result))
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._many(_REQUEST, [row for what, row, _ in batch if what == "request"])
            self._many(_NOTE, [row for what, row, _ in batch if what == "note"])
            self._many(_RESULT, [(number, row.attempt, row.state, *row.values) for number, row in results])
            self._many(
                _BODY, [(number, digest_of(row.body), row.body) for number, row in results if row.body is not None]
            )
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # a full disk has rolled it back already
                self._db.execute("ROLLBACK")
            raise
        self._next_result += len(results)

    def _many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """Write rows in as few statements as may be: each one takes the interpreter's lock away from the event loop and back."""
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            marks = "(" + ",".join("?" * len(chunk[0])) + ")"
            self._db.execute(statement.format(rows=",".join([marks] * len(chunk))), list(chain.from_iterable(chunk)))


def _resolve(futures: "list[asyncio.Future[None]]", error: AerieError | None) -> None:
    for future in futures:
        if future.done():  # its worker was cancelled; the row is written all the same
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
