"""Rows that earlier builds made of the same lines, and what those lines showed of their provider's habits."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from pipeline.answers.providers.habits import UNKNOWN, Habits, Seen
from pipeline.core.reuse.cache import ReuseCache
from pipeline.core.reuse.rows import Found, KeptRows
from pipeline.formats.schema.tokens import SCHEMA

Line = tuple[int, bytes | None, bytes | None]
"""(number, line of responses or None, line of prompts or None)."""

_ROWS = SCHEMA.append(pa.field("habits", pa.binary()))
"""Rows as they are written, with a digest of the habits by which they were made."""
_SEEN = pa.schema([pa.field("seen", pa.binary())])
_NUMBERED = "line-"
"""How an id begins that was made of a line's number, since the line has none: such rows are not the same elsewhere in a file."""


class Fresh(NamedTuple):
    """Rows of some lines, made now."""

    batch: pa.RecordBatch
    counts: list[int]
    """Rows of each line."""


class KeptLines:
    """What is kept of lines, by their bytes and the prompt's."""

    def __init__(self, kept: ReuseCache) -> None:
        self._kept = kept
        self._rows, self._seen = KeptRows(kept, _ROWS), KeptRows(kept, _SEEN)
        self._habits: Mapping[str | None, Habits] = {}
        self._digests: dict[str | None, bytes] = {}

    def use(self, habits: Mapping[str | None, Habits]) -> None:
        """From here on rows must be those that these habits make."""
        self._habits, self._digests = habits, {}

    def look(self, lines: Sequence[Line]) -> Found:
        """Find the rows of some lines."""
        found = self._rows.look([self._key(b"rows", line) for line in lines])
        for number, place in enumerate(found.places):
            if place is not None and not self._made_so(*place):
                found.places[number] = None
        return found

    def join(self, found: Found, fresh: Fresh | None) -> pa.RecordBatch:
        """Put kept and fresh rows together in the columns of SCHEMA, and keep the fresh ones."""
        if fresh is None:
            whole = found.joined(None, [])
        else:
            marked = self._marked(fresh.batch)
            self._rows.add(
                [
                    None if numbered else found.keys[at]
                    for at, numbered in zip(found.missing, _numbered(fresh), strict=True)
                ],
                marked,
                fresh.counts,
            )
            whole = found.joined(marked, fresh.counts)
        return pa.RecordBatch.from_arrays(whole.columns[:-1], schema=SCHEMA)

    def seen(self, line: Line) -> dict[str | None, Seen] | None:
        """What a line showed of its provider, where that is kept."""
        (place,) = self._seen.look([self._key(b"seen", line)]).places
        return None if place is None else _unpacked(place[0].column(0)[place[1]].as_py())

    def add_seen(self, line: Line, shown: dict[str | None, Seen]) -> None:
        """Keep what a line showed."""
        self._seen.add(
            [self._key(b"seen", line)],
            pa.RecordBatch.from_arrays([pa.array([_packed(shown)], pa.binary())], schema=_SEEN),
            [1],
        )

    def close(self) -> None:
        """Keep what waits."""
        self._rows.flush()
        self._seen.flush()

    def _key(self, what: bytes, line: Line) -> bytes:
        _, text, prompt = line
        return self._kept.key(what, *(b"-" if part is None else b"+" + part for part in (text, prompt)))

    def _digest(self, provider: str | None) -> bytes:
        if provider not in self._digests:
            self._digests[provider] = hashlib.sha256(repr(self._habits.get(provider, UNKNOWN)).encode()).digest()[:16]
        return self._digests[provider]

    def _made_so(self, batch: pa.RecordBatch, at: int, _rows: int) -> bool:
        return bool(batch.column("habits")[at].as_py() == self._digest(batch.column("provider")[at].as_py()))

    def _marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        digests = pa.array(map(self._digest, batch.column("provider").to_pylist()), pa.binary())
        return pa.RecordBatch.from_arrays([*batch.columns, digests], schema=_ROWS)


def _numbered(fresh: Fresh) -> Iterator[bool]:
    """Whether the rows of each line are named by its number."""
    ids, at = fresh.batch.column("id").to_pylist(), 0
    for count in fresh.counts:
        yield ids[at].startswith(_NUMBERED)
        at += count


def _packed(shown: dict[str | None, Seen]) -> bytes:
    return orjson.dumps(
        [
            [
                name,
                {
                    field.name: _plain(getattr(counts, field.name))
                    for field in fields(Seen)
                    if getattr(counts, field.name)
                },
            ]
            for name, counts in shown.items()
        ]
    )


def _plain(value: Any) -> Any:
    return list(value.items()) if isinstance(value, Counter) else value


def _unpacked(packed: bytes) -> dict[str | None, Seen]:
    return {
        name: Seen(**{field: _restored(value) for field, value in counts.items()})
        for name, counts in orjson.loads(packed)
    }


def _restored(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return Counter({tuple(key) if isinstance(key, list) else key: count for key, count in value})
