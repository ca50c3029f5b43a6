"""Folders of hidden states: their counts, a check of every row, and the search for one row."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.core.errors import InputError
from pipeline.core.files.json_file import read_model
from pipeline.formats.hidden_states import HiddenStates, IndexRow, check_digest, stamp_beside
from pipeline.formats.schema.hidden import Manifest, Stamp


@dataclass(frozen=True, slots=True)
class FolderCounts:
    """Sizes of one folder."""

    rows: int
    tokens: int
    supervised: int
    longest: int
    shards: int
    shard_bytes: int
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CheckedFolder:
    """The result of a check that found nothing wrong."""

    rows: int
    tokens: int
    stamp: Path | None
    """The stamp whose digest is that of the files; None if there is no stamp beside the folder."""


@dataclass(frozen=True, slots=True)
class StateSize:
    """Magnitudes of one state over a row."""

    name: str
    mean_rms: float
    """Mean over the tokens of the root mean square."""
    first_rms: float
    last_rms: float
    largest: float
    """Largest absolute value."""


@dataclass(frozen=True, slots=True)
class ShownRow:
    """One row: its place, its ids and the magnitudes of its states."""

    folder: Path
    place: IndexRow
    token_ids: list[int]
    states: list[StateSize]


def count_folder(folder: Path) -> FolderCounts:
    """Count the rows, tokens and bytes of a folder.

    Raises:
        ArtifactError: the folder is damaged.

    """
    states = HiddenStates(folder)
    lengths = [row.length for row in states.index]
    shards = sorted(folder.glob("shard-*"))
    return FolderCounts(
        rows=len(lengths),
        tokens=sum(lengths),
        supervised=sum(row.length - row.prompt_length for row in states.index),
        longest=max(lengths, default=0),
        shards=len(shards),
        shard_bytes=sum(path.stat().st_size for path in shards),
        manifest=states.manifest,
    )


def check_folder(folder: Path) -> CheckedFolder:
    """Read every row and check ids, sizes and values, and the digest of the stamp if there is one.

    Raises:
        ArtifactError: a row is damaged, or a file changed since extraction.

    """
    states = HiddenStates(folder)
    tokens = sum(len(states.check(number).token_ids) for number in range(len(states)))
    stamp = stamp_beside(folder)
    if stamp.is_file():
        check_digest(folder, read_model(stamp, Stamp).sha256, stamp)
    return CheckedFolder(len(states), tokens, stamp if stamp.is_file() else None)


def find_row(folders: Sequence[Path], row_id: str) -> ShownRow:
    """Return the row of that id from the first folder that has it.

    Raises:
        InputError: no folder has it; the message has some ids that exist.
        ArtifactError: a folder is damaged.

    """
    known: list[str] = []
    for folder in folders:
        states = HiddenStates(folder)
        if row_id in states.by_id:
            return _shown(folder, states, states.by_id[row_id])
        known += list(states.by_id)[:3]
    raise InputError(f"no row {row_id!r} in {', '.join(map(str, folders))}; there are for example {known[:5]}")


def _shown(folder: Path, states: HiddenStates, number: int) -> ShownRow:
    row = states[number]
    names = [f"input of layer {layer}" for layer in states.manifest.layer_ids]
    sizes = [_size(name, state) for name, state in zip(names, row.aux.float().chunk(3, -1), strict=True)]
    sizes.append(_size("last, before the norm", row.last.float()))
    return ShownRow(folder, states.index[number], row.token_ids.tolist(), sizes)


def _size(name: str, state: torch.Tensor) -> StateSize:
    """Return the magnitudes of a state [tokens, hidden]."""
    rms = state.pow(2).mean(-1).sqrt()
    return StateSize(name, float(rms.mean()), float(rms[0]), float(rms[-1]), float(state.abs().max()))
