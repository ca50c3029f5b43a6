"""Two versions of tokens.parquet, row by row: rows added, removed, changed or renamed.

Each row becomes three digests of 16 bytes, of its prompt, its completion and its other columns, so that memory does not
grow with the length of rows.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.errors import InputError
from pipeline.core.files.tables import read_batches
from pipeline.formats.schema.tokens import SCHEMA

PROMPT, COMPLETION = "prompt_ids", "completion_ids"
RECORD = [name for name in SCHEMA.names if name not in ("id", PROMPT, COMPLETION)]
"""The other columns: evidence, status, provider and so on."""

_NULL = -(1 << 62)
_COUNTED = ("evidence", "provider", "status", "finish_reason")

Digests = tuple[bytes, bytes, bytes]
"""Digests of the prompt, the completion, the record; 16 bytes each."""


@dataclass(slots=True)
class ColumnTotals:
    """Sums and counts over the columns of one version."""

    rows: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    billed_tokens: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in _COUNTED})

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch."""
        self.rows += batch.num_rows
        self.prompt_tokens += len(batch.column(PROMPT).flatten())
        self.completion_tokens += len(batch.column(COMPLETION).flatten())
        self.billed_tokens += pc.sum(batch.column("billed_tokens")).as_py() or 0
        for name, counter in self.counts.items():
            for item in pc.value_counts(batch.column(name)).to_pylist():
                counter[item["values"] or "none"] += item["counts"]


@dataclass(slots=True)
class RowChanges:
    """The rows in which two versions differ, by row id; each list is in the order of its file."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    """Old and new id of rows with the same content under another id; they are in neither `added` nor `removed`."""
    changed: dict[str, list[str]] = field(default_factory=dict)
    """Row id to the parts that changed: prompt, completion, record."""
    unchanged: int = 0
    old: ColumnTotals = field(default_factory=ColumnTotals)
    new: ColumnTotals = field(default_factory=ColumnTotals)


def _codes(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return a column of N values as N int64 numbers, equal for equal values in any file; a string becomes a digest."""
    if pa.types.is_string(array.type):
        encoded = array.dictionary_encode()
        text_codes = [
            int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
            for text in encoded.dictionary.to_pylist()
        ]
        table = np.array([*text_codes, _NULL], dtype=np.int64)
        indices = encoded.indices.fill_null(len(text_codes)).to_numpy(zero_copy_only=False)
        codes: npt.NDArray[np.int64] = table[indices]
        return codes
    return np.asarray(array.cast(pa.int64()).fill_null(_NULL).to_numpy(zero_copy_only=False))


def _slices(array: pa.Array) -> list[bytes]:
    """Return the bytes of each row of a list column."""
    flat = array.flatten()
    columns = [_codes(flat.field(n)) for n in range(flat.type.num_fields)] if pa.types.is_struct(flat.type) else None
    values = (
        np.ascontiguousarray(np.stack(columns, axis=1))
        if columns is not None
        else _codes(flat)
        if flat.type != pa.int32() or flat.null_count
        else flat.to_numpy()
    )
    ends = np.cumsum(np.asarray(pc.list_value_length(array).fill_null(0)))
    starts = np.concatenate([[0], ends[:-1]])
    return [values[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _digest(parts: Iterable[bytes]) -> bytes:
    return hashlib.blake2b(b"\0".join(b"%d:%b" % (len(part), part) for part in parts), digest_size=16).digest()


def digests(batch: pa.RecordBatch) -> Iterator[tuple[str, Digests]]:
    """Yield row id and digests of each row of a batch."""
    lists = [name for name in RECORD if pa.types.is_list(SCHEMA.field(name).type)]
    scalars = np.ascontiguousarray(
        np.stack([_codes(batch.column(name)) for name in RECORD if name not in lists], axis=1)
    )
    prompts, completions = _slices(batch.column(PROMPT)), _slices(batch.column(COMPLETION))
    others = [_slices(batch.column(name)) for name in lists]
    for n, identity in enumerate(batch.column("id").to_pylist()):
        yield (
            identity,
            (
                _digest([prompts[n]]),
                _digest([completions[n]]),
                _digest([scalars[n].tobytes(), *(column[n] for column in others)]),
            ),
        )


def read_digests(path: Path, totals: ColumnTotals) -> dict[str, Digests]:
    """Read the digests of every row, by row id; add the rows to ``totals``.

    Raises:
        InputError: the file is not a tokens file, or two rows share an id.

    """
    rows: dict[str, Digests] = {}
    for batch in read_batches(path, SCHEMA):
        totals.add(batch)
        for identity, row in digests(batch):
            if identity in rows:
                raise InputError(
                    f"{path}: two rows have the id {identity!r}, so rows cannot be matched by id; run `dvc repro`"
                )
            rows[identity] = row
    return rows


def compare(old: Path | None, new: Path | None) -> RowChanges:
    """Compare two files; None for a version without this dataset.

    Raises:
        InputError: as `read_digests`.

    """
    changes = RowChanges()
    before = read_digests(old, changes.old) if old is not None else {}
    after = read_digests(new, changes.new) if new is not None else {}
    for identity, row in after.items():
        was = before.get(identity)
        if was is None:
            changes.added.append(identity)
        elif was == row:
            changes.unchanged += 1
        else:
            changes.changed[identity] = [
                what for what, a, b in zip(("prompt", "completion", "record"), was, row, strict=True) if a != b
            ]
    changes.removed = [identity for identity in before if identity not in after]
    _match_renamed(changes, before, after)
    return changes


def _match_renamed(changes: RowChanges, before: dict[str, Digests], after: dict[str, Digests]) -> None:
    """Move rows with equal content under another id from `added` and `removed` to `renamed`."""
    removed_by_content: dict[Digests, list[str]] = {}
    for identity in changes.removed:
        removed_by_content.setdefault(before[identity], []).append(identity)
    for identity in changes.added:
        if candidates := removed_by_content.get(after[identity]):
            changes.renamed.append((candidates.pop(0), identity))
    gone, come = ({pair[side] for pair in changes.renamed} for side in (0, 1))
    changes.removed = [identity for identity in changes.removed if identity not in gone]
    changes.added = [identity for identity in changes.added if identity not in come]


def unchanged(path: Path) -> RowChanges:
    """Count the rows of a file that both versions share.

    Raises:
        InputError: the file is not a tokens file.

    """
    changes = RowChanges()
    for batch in read_batches(path, SCHEMA):
        changes.new.add(batch)
    changes.old, changes.unchanged = changes.new, changes.new.rows
    return changes


def pick(path: Path, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Read the whole rows with some ids, by row id.

    Raises:
        InputError: the file is not a tokens file.

    """
    wanted = pa.array(list(ids), pa.string())
    rows = {}
    for batch in read_batches(path, SCHEMA):
        for row in batch.filter(pc.is_in(batch.column("id"), wanted)).to_pylist():
            rows[row["id"]] = row
        if len(rows) == len(wanted):
            break
    return rows
