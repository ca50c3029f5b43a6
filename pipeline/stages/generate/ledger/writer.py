"""A thread that writes the ledger, many rows to a commit.

A write is done when its commit is on the disk.
"""

import asyncio
import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from pipeline.core.errors import AerieError
from pipeline.stages.generate.ledger.connection import is_full, ledger_error, transaction
from pipeline.stages.generate.ledger.queries import next_result_id
from pipeline.stages.generate.ledger.records import BodyRecord, GenerationRecord, RequestRecord, Settlement
from pipeline.stages.generate.ledger.statements import (
    insert_bodies,
    insert_generations,
    insert_requests,
    insert_results,
)

_LINGER = 2e-5
"""Seconds, for each request in flight, to gather rows for one commit: 20 ms at 1,000 requests.

Requests hold their places meanwhile. But a commit costs a disk flush, and it takes the interpreter's lock from the
event loop about ten times, however many rows it has.
"""
_LONGEST_LINGER = 0.05

_HELD = 2047
"""Most bytes that hashlib hashes without releasing the interpreter's lock."""
_HELD_BODIES = 1 << 16
"""Longest body that is hashed under the lock: releasing it and waiting for the event loop takes longer."""


def digest_of(body: bytes) -> bytes:
    """Return the SHA-256 digest of a body."""
    if not _HELD < len(body) <= _HELD_BODIES:
        return hashlib.sha256(body).digest()
    digest, view = hashlib.sha256(), memoryview(body)
    for start in range(0, len(body), _HELD):
        digest.update(view[start : start + _HELD])
    return digest.digest()


class QueuedWrite(NamedTuple):
    """A record to write, and the future that its commit resolves."""

    record: RequestRecord | Settlement | GenerationRecord
    done: "asyncio.Future[None] | None" = None


class Writer:
    """Takes records from the event loop and commits them in its own thread."""

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        *,
        in_flight: int,
        refusal: Callable[[], AerieError | None],
    ) -> None:
        """Start the thread.

        ``in_flight``: most requests in flight; ``refusal`` returns, in this thread, why no request may be written now.
        """
        self._refusal = refusal
        self._linger = min(_LONGEST_LINGER, _LINGER * in_flight)
        self._db = db
        self._path = path
        self._next_result = next_result_id(db)
        self._loop = loop
        self._queue: SimpleQueue[QueuedWrite | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ledger")
        self._error: AerieError | None = None
        """Why requests are not written any more."""
        self._broken = False
        """Whether nothing else can be written either."""
        self._thread.start()

    def reserve(self, request: RequestRecord) -> "asyncio.Future[None]":
        """Write a request that is about to be sent."""
        return self._put(request)

    def settle(self, settlement: Settlement) -> "asyncio.Future[None]":
        """Write how a request ended, with the bytes that were received."""
        return self._put(settlement)

    def note(self, generation: GenerationRecord) -> None:
        """Write the router's id of a request in flight. Nobody waits for it."""
        self._queue.put(QueuedWrite(generation))

    def close(self) -> None:
        """Commit everything handed over so far, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _put(self, record: RequestRecord | Settlement) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(QueuedWrite(record, future))
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

    def _commit(self, batch: list[QueuedWrite]) -> None:
        """Commit a batch.

        Once a commit has failed, requests are refused, but each settlement is still tried by itself: it is paid for,
        and may still fit on the disk.
        """
        if self._error is None and any(isinstance(item.record, RequestRecord) for item in batch):
            self._error = self._refusal()
        if self._error is None:
            self._error = self._try(batch)
            if self._error is None:
                self._report(batch, None)
                return
        for item in batch:
            refused = self._broken or isinstance(item.record, RequestRecord)
            self._report([item], self._error if refused else self._try([item]))

    def _try(self, batch: list[QueuedWrite]) -> AerieError | None:
        """Commit some records; return the error if that fails."""
        try:
            self._write(batch)
        except sqlite3.Error as error:
            self._broken = not is_full(error)
            return ledger_error(self._path, error)
        return None

    def _report(self, batch: list[QueuedWrite], error: AerieError | None) -> None:
        """Resolve the futures of these records on the event loop."""
        if not self._loop.is_closed():
            futures = [item.done for item in batch if item.done is not None]
            self._loop.call_soon_threadsafe(_resolve, futures, error)

    def _write(self, batch: list[QueuedWrite]) -> None:
        records = [item.record for item in batch]
        settlements = [record for record in records if isinstance(record, Settlement)]
        numbered = list(enumerate(settlements, self._next_result))
        with transaction(self._db):
            insert_requests(self._db, [record for record in records if isinstance(record, RequestRecord)])
            insert_generations(self._db, [record for record in records if isinstance(record, GenerationRecord)])
            insert_results(self._db, [(number, settlement.result) for number, settlement in numbered])
            insert_bodies(
                self._db,
                [
                    BodyRecord(number, digest_of(settlement.body), settlement.body)
                    for number, settlement in numbered
                    if settlement.body is not None
                ],
            )
        self._next_result += len(settlements)


def _resolve(futures: "list[asyncio.Future[None]]", error: AerieError | None) -> None:
    for future in futures:
        if future.done():  # its worker was cancelled; the row is written nevertheless
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
