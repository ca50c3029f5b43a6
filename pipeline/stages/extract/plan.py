"""The rows to compute, their batches and their shards.

The rows' content alone decides: a resumed run makes the same bytes, and an edited dataset the same batches and shards
except near the edit.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from pipeline.core.errors import InputError
from pipeline.core.files.tables import flat_lists
from pipeline.formats.hidden_states import checksum
from pipeline.formats.schema.hidden import StoredDtype
from pipeline.stages.extract.config import ExtractSection
from pipeline.stages.extract.content_cuts import runs

_ITEM_BYTES: dict[StoredDtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
_STATES = 4
"""Three auxiliary layers and the last."""
MOST_PADDING = 0.03
"""Share of a padded batch that may be padding."""
_WINDOW = 32
"""Batches of rows from which a padded batch takes rows of similar length."""


@dataclass(frozen=True)
class InputRow:
    """One conversation to run the target over."""

    id: str
    token_ids: torch.Tensor
    """int32 [length]."""
    prompt_length: int

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the ids; also decides where batches and shards are cut."""
        return checksum(self.token_ids)


@dataclass(slots=True)
class Selection:
    """The rows to extract, in the order of the input, and counts of the others."""

    rows: list[InputRow] = field(default_factory=list)
    segments: list[pa.Array] = field(default_factory=list)
    """Their segments as in accepted.parquet, in pieces; passed on unchanged."""
    cut: int = 0
    """Rows cut to `max_length`."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Rows left out, by reason."""


def select(source: Path, table: Iterable[pa.RecordBatch], config: ExtractSection, vocab_size: int) -> Selection:
    """Select the rows to extract from batches in the columns of schema/tokens.py.

    Cut or leave out long rows, and count them.

    Raises:
        InputError: an id comes twice, or a token is outside the target's vocabulary.

    """
    selection = Selection()
    seen: set[str] = set()
    for batch in table:
        taken = []
        for number, row in enumerate(_rows(batch)):
            if row.id in seen:
                raise InputError(
                    f"{source}: the id {row.id!r} comes twice; hidden states are looked up by id: make ids unique"
                )
            seen.add(row.id)
            ids = row.token_ids.numpy()
            if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
                place = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
                raise InputError(
                    f"{source}: row {row.id!r}: token {place} is {ids[place]}; the target's vocabulary has "
                    f"{vocab_size} "
                    "ids: these rows are another target's"
                )
            if _take(selection, row, config):
                taken.append(number)
        selection.segments.append(batch.column("segments").take(pa.array(taken, pa.int64())))
    return selection


def _rows(batch: pa.RecordBatch) -> Iterator[InputRow]:
    """Yield each row with its ids, prompt and completion, without a Python object for each id."""
    (prompts, begins), (completions, starts) = (
        flat_lists(batch.column(name)) for name in ("prompt_ids", "completion_ids")
    )
    edges = zip(pairwise(begins.tolist()), pairwise(starts.tolist()), strict=True)
    for name, ((begin, end), (start, stop)) in zip(batch.column("id").to_pylist(), edges, strict=True):
        yield InputRow(
            name, torch.from_numpy(np.concatenate((prompts[begin:end], completions[start:stop]))), end - begin
        )


def _take(selection: Selection, row: InputRow, config: ExtractSection) -> bool:
    """Add a row to the selection, or count why not; return whether it was added."""
    long = len(row.token_ids) > config.max_length
    if long and config.on_long == "leave_out":
        selection.left_out["longer_than_max_length"] += 1
        return False
    kept = row.token_ids[: config.max_length]
    if len(kept) <= row.prompt_length or len(kept) < 2:
        selection.left_out["no_supervised_tokens"] += 1
        return False
    selection.cut += long
    selection.rows.append(InputRow(row.id, kept, row.prompt_length))
    return True


def bytes_per_token(hidden_size: int, dtype: StoredDtype) -> int:
    """Return the disk space of one token: four states, its id, and the scales of float8."""
    scales = _STATES * 4 if dtype == "float8_e4m3fn" else 0
    return _STATES * hidden_size * _ITEM_BYTES[dtype] + 4 + scales


def batches(rows: list[InputRow], tokens: int, *, padded: bool) -> Iterator[list[int]]:
    """Yield the numbers of each batch's rows, longest first.

    A batch holds neighbours of at most ``tokens`` tokens; a longer row is a batch alone. A padded batch is also closed
    before a row that would bring its padding above 3 %; its rows come from a window of 32 batches, where there are more
    rows of similar length.
    """
    sizes, marks = [len(row.token_ids) for row in rows], [row.checksum for row in rows]
    for run in runs(sizes, marks, tokens * _WINDOW if padded else tokens):
        ordered = sorted(run, key=lambda number: (-sizes[number], number))
        if padded:
            yield from _even(ordered, sizes, tokens)
        else:
            yield ordered


def _even(ordered: list[int], sizes: list[int], tokens: int) -> Iterator[list[int]]:
    """Cut rows, longest first, into batches of nearly one length."""
    batch: list[int] = []
    for number in ordered:
        longest = sizes[batch[0]] if batch else 0
        if batch and (longest * (len(batch) + 1) > tokens or sizes[number] < (1 - MOST_PADDING) * longest):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Whole batches that make one shard."""

    name: str
    batches: list[list[int]]
    tokens: int


def shards(rows: list[InputRow], batched: Iterable[list[int]], token_bytes: int, shard_bytes: int) -> list[ShardPlan]:
    """Group batches into shards of at most ``shard_bytes``; a larger batch is a shard alone."""
    members = list(batched)
    tokens = [sum(len(rows[number].token_ids) for number in batch) for batch in members]
    marks = [
        hashlib.sha256("".join(rows[number].checksum for number in batch).encode()).hexdigest() for batch in members
    ]
    cuts = runs([count * token_bytes for count in tokens], marks, shard_bytes)
    return [
        ShardPlan(f"shard-{place:05d}.safetensors", members[run.start : run.stop], sum(tokens[run.start : run.stop]))
        for place, run in enumerate(cuts)
    ]
