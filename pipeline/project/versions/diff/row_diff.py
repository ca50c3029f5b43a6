"""Two versions of tokens.parquet, row by row: which were added, removed, changed or renamed; by digests, so that memory stays flat.

A row of 1,000 tokens becomes three digests: of what the model read, of what it emitted, of everything else that is recorded of it.
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
"""Columns that say how the ids are known and what became of them."""

_NULL = -(1 << 62)
_COUNTED = ("evidence", "provider", "status", "finish_reason")

Digests = tuple[bytes, bytes, bytes]
"""Of the prompt, the completion, the record."""


@dataclass(slots=True)
class Totals:
    """One version's columns, counted."""

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
    """How two versions differ, by row id; each list is in the order of its file."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    """Rows with the same content under another id: old id, new id; they are neither in `added` nor in `removed`."""
    changed: dict[str, list[str]] = field(default_factory=dict)
    """Row id to what changed: prompt, completion, record."""
    unchanged: int = 0
    old: Totals = field(default_factory=Totals)
    new: Totals = field(default_factory=Totals)


def _codes(array: pa.Array) -> npt.NDArray[np.int64]:
    """A column as numbers that are equal when the values are, in any file; a string stands for a digest of itself."""
    if pa.types.is_string(array.type):
        encoded = array.dictionary_encode()
        known = [
            int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
            for text in encoded.dictionary.to_pylist()
        ]
        table = np.array([*known, _NULL], dtype=np.int64)
        codes: npt.NDArray[np.int64] = table[encoded.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)]
        return codes
    return np.asarray(array.cast(pa.int64()).fill_null(_NULL).to_numpy(zero_copy_only=False))


def _slices(array: pa.Array) -> list[bytes]:
    """Bytes of each row of a list column."""
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
    """Row id and digests of each row of a batch."""
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


def read_digests(path: Path, totals: Totals) -> dict[str, Digests]:
    """Digests of every row by id; ``totals`` is counted on the way.

    Raises:
        InputError: not a tokens file, or two rows share an id.

    """
    found: dict[str, Digests] = {}
    for batch in read_batches(path, SCHEMA):
        totals.add(batch)
        for identity, row in digests(batch):
            if identity in found:
                raise InputError(
                    f"{path}: two rows have the id {identity!r}, so rows cannot be matched by id; run `dvc repro`"
                )
            found[identity] = row
    return found


def compare(old: Path | None, new: Path | None) -> RowChanges:
    """Compare two files; None stands for a version without this dataset.

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
    """Take rows whose content only moved to another id out of the added and the removed."""
    homeless: dict[Digests, list[str]] = {}
    for identity in changes.removed:
        homeless.setdefault(before[identity], []).append(identity)
    for identity in changes.added:
        if candidates := homeless.get(after[identity]):
            changes.renamed.append((candidates.pop(0), identity))
    gone, come = ({pair[side] for pair in changes.renamed} for side in (0, 1))
    changes.removed = [identity for identity in changes.removed if identity not in gone]
    changes.added = [identity for identity in changes.added if identity not in come]


def unchanged(path: Path) -> RowChanges:
    """Count a file that is the same in both versions.

    Raises:
        InputError: not a tokens file.

    """
    changes = RowChanges()
    for batch in read_batches(path, SCHEMA):
        changes.new.add(batch)
    changes.old, changes.unchanged = changes.new, changes.new.rows
    return changes


def pick(path: Path, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Whole rows with these ids.

    Raises:
        InputError: not a tokens file.

    """
    wanted = pa.array(list(ids), pa.string())
    found = {}
    for batch in read_batches(path, SCHEMA):
        for row in batch.filter(pc.is_in(batch.column("id"), wanted)).to_pylist():
            found[row["id"]] = row
        if len(found) == len(wanted):
            break
    return found
