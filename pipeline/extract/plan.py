"""What to compute, in which batches, into which shards: decided by the rows' content alone, so that a resumed run makes the same bytes,
and an edited dataset the same batches and shards but for those near the edit.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import InputError
from pipeline.extract.config import ExtractSection
from pipeline.extract.runs import runs
from pipeline.schema.hidden import StoredDtype
from pipeline.shards import checksum

_ITEM_BYTES: dict[StoredDtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
_STATES = 4
"""Three auxiliary layers and the last."""
MOST_PADDING = 0.03
"""Share of a padded batch that may be padding."""
_NEIGHBOURHOOD = 32
"""Batches' worth of rows among which a padded batch looks for rows of its length."""


@dataclass(frozen=True)
class Row:
    """One conversation to run the target over."""

    id: str
    token_ids: torch.Tensor
    """int32 [length]."""
    prompt_length: int
    segments: list[dict[str, Any]]
    """As in accepted.parquet; only handed on."""

    @cached_property
    def checksum(self) -> str:
        """Of its ids; also decides where batches and shards are cut."""
        return checksum(self.token_ids)


@dataclass(slots=True)
class Selection:
    """The rows to extract, in the order of the input, and what became of the others."""

    rows: list[Row] = field(default_factory=list)
    cut: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def select(source: Path, table: Iterable[dict[str, Any]], config: ExtractSection, vocab_size: int) -> Selection:
    """Take the rows to extract; one that is too long is cut or left out, and counted.

    Raises:
        InputError: an id comes twice, or a token lies outside the target's vocabulary.

    """
    selection = Selection()
    seen = set()
    for raw in table:
        name = raw["id"]
        if name in seen:
            raise InputError(f"{source}: the id {name!r} comes twice; hidden states are looked up by id: make ids unique")
        seen.add(name)
        ids = torch.tensor([*raw["prompt_ids"], *raw["completion_ids"]], dtype=torch.int32)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
            place = int(((ids < 0) | (ids >= vocab_size)).nonzero()[0])
            raise InputError(
                f"{source}: row {name!r}: token {place} is {int(ids[place])}; the target's vocabulary has {vocab_size} ids: these rows are another target's"
            )
        _take(selection, Row(name, ids, len(raw["prompt_ids"]), raw["segments"]), config)
    return selection


def _take(selection: Selection, row: Row, config: ExtractSection) -> None:
    long = len(row.token_ids) > config.max_length
    if long and config.on_long == "leave_out":
        selection.left_out["longer_than_max_length"] += 1
        return
    kept = row.token_ids[: config.max_length]
    if len(kept) <= row.prompt_length or len(kept) < 2:
        selection.left_out["no_supervised_tokens"] += 1
        return
    selection.cut += long
    selection.rows.append(Row(row.id, kept, row.prompt_length, row.segments))


def bytes_per_token(hidden_size: int, dtype: StoredDtype) -> int:
    """Disk space of one token: four states, its id, and the scales of float8."""
    scales = _STATES * 4 if dtype == "float8_e4m3fn" else 0
    return _STATES * hidden_size * _ITEM_BYTES[dtype] + 4 + scales


def batches(rows: list[Row], tokens: int, *, padded: bool) -> Iterator[list[int]]:
    """Numbers of rows in batches of at most ``tokens`` tokens, neighbours together, in a batch the longest first; a longer row is a batch alone.

    A padded batch is closed as well when a row would bring more than 3 % padding; its rows come from a wider neighbourhood, to find some of a length.
    """
    sizes, marks = [len(row.token_ids) for row in rows], [row.checksum for row in rows]
    for run in runs(sizes, marks, tokens * _NEIGHBOURHOOD if padded else tokens):
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


def shards(rows: list[Row], batched: Iterable[list[int]], token_bytes: int, shard_bytes: int) -> list[ShardPlan]:
    """Group batches into shards of at most ``shard_bytes``; a larger batch is a shard alone."""
    members = list(batched)
    tokens = [sum(len(rows[number].token_ids) for number in batch) for batch in members]
    marks = [hashlib.sha256("".join(rows[number].checksum for number in batch).encode()).hexdigest() for batch in members]
    cuts = runs([count * token_bytes for count in tokens], marks, shard_bytes)
    return [ShardPlan(f"shard-{place:05d}.safetensors", members[run.start : run.stop], sum(tokens[run.start : run.stop])) for place, run in enumerate(cuts)]
