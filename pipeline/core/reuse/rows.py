"""Results that are rows of Arrow batches: looked up by key, computed where they are not kept, put together in order."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline.core.reuse.cache import ReuseCache

_SEGMENT_ROWS = 512
_SEGMENT_BYTES = 4 << 20
"""A segment is written when it has so many rows or bytes: small enough that a scattered hit reads little, large enough that files are few."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
_DECODED = 8
"""Segments held in memory: rows come in the order of earlier builds, so few are in use at a time."""


@dataclass(slots=True)
class Found:
    """What is kept of some items, in their order."""

    keys: Sequence[bytes]
    places: list[tuple[pa.RecordBatch, int, int] | None]
    """Batch, first row and number of rows of each item, or None where it must be computed."""

    @property
    def missing(self) -> list[int]:
        """Numbers of the items to compute."""
        return [number for number, place in enumerate(self.places) if place is None]

    def joined(self, fresh: pa.RecordBatch | None, counts: Sequence[int]) -> pa.RecordBatch:
        """Put kept and fresh rows together, in the order of the items; ``counts`` are the fresh rows of each missing item."""
        parts: list[pa.RecordBatch] = []
        run: tuple[pa.RecordBatch, int, int] | None = None
        at, left = 0, iter(counts)
        for place in self.places:
            if place is None:
                count = next(left)
                place = (fresh, at, count)  # noqa: PLW2901 - from here on a fresh row is like a kept one
                at += count
            if run is not None and run[0] is place[0] and run[1] + run[2] == place[1]:
                run = (run[0], run[1], run[2] + place[2])
                continue
            if run is not None:
                parts.append(run[0].slice(run[1], run[2]))
            run = place
        if run is not None:
            parts.append(run[0].slice(run[1], run[2]))
        return parts[0] if len(parts) == 1 else pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


class KeptRows:
    """ReuseCache rows of one schema."""

    def __init__(self, kept: ReuseCache, schema: pa.Schema) -> None:
        self.kept = kept
        self._schema = schema
        self._decoded: OrderedDict[bytes, pa.RecordBatch] = OrderedDict()
        self._waiting: list[pa.RecordBatch] = []
        self._pieces: list[tuple[bytes, int, int]] = []
        self._rows = self._bytes = 0

    def look(self, keys: Sequence[bytes]) -> Found:
        """Find what is kept."""
        return Found(keys, [None if piece is None else self._place(*piece) for piece in self.kept.find(keys)])

    def add(self, keys: Sequence[bytes | None], batch: pa.RecordBatch, counts: Sequence[int]) -> None:
        """Keep freshly computed rows; a key of None keeps its item's rows out."""
        if not self.kept.on:
            return
        at = self._rows
        for key, count in zip(keys, counts, strict=True):
            if key is not None:
                self._pieces.append((key, at, count))
            at += count
        self._waiting.append(batch)
        self._rows = at
        self._bytes += batch.nbytes
        if self._rows >= _SEGMENT_ROWS or self._bytes >= _SEGMENT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits; call at the end."""
        if self._pieces:
            whole = pa.Table.from_batches(self._waiting, schema=self._schema).combine_chunks().to_batches()[0]
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self._schema, options=_OPTIONS) as writer:
                writer.write_batch(whole)
            self.kept.add(sink.getvalue().to_pybytes(), self._pieces)
        self._waiting, self._pieces, self._rows, self._bytes = [], [], 0, 0

    def _place(self, segment: bytes, at: int, rows: int) -> tuple[pa.RecordBatch, int, int] | None:
        batch = self._batch(segment)
        return None if batch is None or at < 0 or rows < 0 or at + rows > batch.num_rows else (batch, at, rows)

    def _batch(self, segment: bytes) -> pa.RecordBatch | None:
        if segment in self._decoded:
            self._decoded.move_to_end(segment)
            return self._decoded[segment]
        data = self.kept.data(segment)
        if data is None:
            return None
        try:
            batch = pa.ipc.open_stream(data).read_next_batch()
        except (pa.ArrowException, OSError, StopIteration):
            self.kept.reject(segment)
            return None
        self._decoded[segment] = batch
        while len(self._decoded) > _DECODED:
            self._decoded.popitem(last=False)
        return batch
