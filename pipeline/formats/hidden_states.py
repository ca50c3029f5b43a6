"""The reader of hidden states: rows out of memory-mapped shards, checked at every step.

`extract` writes them; `train`, the exports and `python -m pipeline hidden` read them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.core.errors import ArtifactError
from pipeline.core.files.digests import sha256_folder
from pipeline.core.files.json_file import read_json, read_model
from pipeline.core.files.tables import read_rows
from pipeline.core.files.tensors import TensorFile, is_finite
from pipeline.formats.loss_mask import LossWeights, weighted
from pipeline.formats.schema.hidden import Manifest
from pipeline.formats.schema.hidden_index import INDEX
from pipeline.formats.schema.tokens import Segment

MANIFEST = "manifest.json"
INDEX_NAME = "index.parquet"
_AGAIN = "delete the folder and run extract again"
FP8_MAX = 448.0
"""Largest value of float8_e4m3fn."""


def checksum(token_ids: torch.Tensor) -> str:
    """Return the SHA-256 in hex of token ids as little-endian int32."""
    return hashlib.sha256(token_ids.to(torch.int32).numpy().astype("<i4").tobytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class IndexRow:
    """The place of one row."""

    id: str
    shard: str
    offset: int
    length: int
    prompt_length: int
    checksum: str
    segments: list[Segment]
    """Spans of the completion; if the row was cut they may end after it."""


@dataclass(frozen=True, slots=True)
class HiddenRow:
    """One conversation's states, on the CPU."""

    id: str
    token_ids: torch.Tensor
    """int64 [length]: prompt, then completion."""
    aux: torch.Tensor
    """[length, 3 * hidden], stored dtype (float32 where stored as float8)."""
    last: torch.Tensor
    """[length, hidden], before the final norm."""
    prompt_length: int


def _index_row(row: dict[str, Any]) -> IndexRow:
    return IndexRow(**{**row, "segments": [Segment(**segment) for segment in row["segments"]]})


def folders_of_build(build: Path) -> list[Path]:
    """Return the folders of the states of the datasets in params.yaml, whether they exist or not.

    Raises:
        ArtifactError: the build was never composed.

    """
    return [build / name / "hidden" for name in read_json(build / "config.json")["names"]]


def stamp_beside(folder: Path) -> Path:
    """Return the path of the stamp of a dataset's states, whether it exists or not."""
    return folder.parent.parent / "extracted" / f"{folder.parent.name}.json"


def check_digest(folder: Path, stamped: str, stamp: Path, known: Mapping[str, str] | None = None) -> None:
    """Refuse files that are not byte for byte the extracted ones.

    Args:
        folder: the hidden states.
        stamped: the digest in the file ``stamp``.
        stamp: the path of that file, for the message.
        known: digests of files that were read already, as for `sha256_folder`.

    Raises:
        ArtifactError: with both digests.

    """
    if (found := sha256_folder(folder, known)) != stamped:
        raise ArtifactError(
            f"{folder}: the files' digest is {found[:16]}, {stamp} has {stamped[:16]}: "
            f"a file changed after extraction; {_AGAIN}"
        )


def quantize(states: torch.Tensor, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Round states to float8, with one scale for each token and part.

    Args:
        states: [tokens, parts * width].
        parts: parts of a state.

    Returns:
        float8_e4m3fn of the same shape, and float32 scales [tokens, parts].

    """
    split = states.float().reshape(len(states), parts, -1)
    scales = split.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny) / FP8_MAX
    return (split / scales[..., None]).to(torch.float8_e4m3fn).reshape(states.shape), scales


def dequantize(stored: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return float32 states from the output of `quantize`."""
    return (stored.float().reshape(*scales.shape, -1) * scales[..., None]).reshape(stored.shape)


class HiddenStates(torch.utils.data.Dataset[HiddenRow]):
    """A folder of hidden states as a torch dataset; rows are in the order of the index.

    Raises:
        ArtifactError: the manifest or index is missing, a shard is cut short, or index and shards disagree.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_model(folder / MANIFEST, Manifest)
        self.index = [_index_row(row) for row in read_rows(folder / INDEX_NAME, INDEX)]
        self.by_id = self._numbers()
        of_shard: dict[str, list[IndexRow]] = {}
        for row in self.index:
            of_shard.setdefault(row.shard, []).append(row)
        if left := {path.name for path in folder.glob("shard-*")} - set(of_shard):
            raise ArtifactError(
                f"{folder}: no row of {INDEX_NAME} is in {sorted(left)}: index and shards are of different runs; "
                f"{_AGAIN}"
            )
        self._shards = {name: TensorFile(folder / name) for name in sorted(of_shard)}
        for name, shard in self._shards.items():
            self._check(name, shard, of_shard[name])

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: int) -> HiddenRow:
        """Read one row, and check its ids against the index.

        Raises:
            ArtifactError: they are not.

        """
        at = self.index[number]
        shard = self._shards[at.shard]
        stop = at.offset + at.length
        token_ids = shard.rows("token_ids", at.offset, stop)
        if (found := checksum(token_ids)) != at.checksum:
            raise ArtifactError(
                f"{self.folder / at.shard}: row {at.id!r} at {at.offset}: token ids have checksum {found[:16]}, "
                f"{INDEX_NAME} has {at.checksum[:16]}: shard and index are of different runs; {_AGAIN}"
            )
        aux, last = (self._states(shard, name, at.offset, stop) for name in ("aux", "last"))
        return HiddenRow(at.id, token_ids.long(), aux, last, at.prompt_length)

    def check(self, number: int) -> HiddenRow:
        """Read one row, and check that its ids are in the vocabulary and its states finite.

        Raises:
            ArtifactError: they are not.

        """
        row = self[number]
        outside = (row.token_ids < 0) | (row.token_ids >= self.manifest.vocab_size)
        if outside.any():
            raise ArtifactError(
                f"{self.folder}: row {row.id!r} has token id {int(row.token_ids[outside][0])}; "
                f"the vocabulary has {self.manifest.vocab_size}: {_AGAIN}"
            )
        for name, state in (("aux", row.aux), ("last", row.last)):
            if not is_finite(state):
                finite = torch.isfinite(state).all(-1)
                raise ArtifactError(
                    f"{self.folder / self.index[number].shard}: row {row.id!r}: {name} is not finite at "
                    f"{int((~finite).sum())} of {len(finite)} tokens, first at {int((~finite).nonzero()[0])}: "
                    f"{_AGAIN}; "
                    "if it happens again, with a wider extract.compute_dtype or extract.dtype"
                )
        return row

    def token_ids(self, number: int) -> torch.Tensor:
        """Return the token ids of one row, int64 [length], without reading its states."""
        at = self.index[number]
        return self._shards[at.shard].rows("token_ids", at.offset, at.offset + at.length).long()

    def loss_weights(self, number: int, weights: LossWeights) -> torch.Tensor:
        """Return the weight of each token in training: float32 [length].

        It is 0 in the prompt, which the target did not write.
        """
        at = self.index[number]
        found = torch.zeros(at.length)
        found[at.prompt_length :] = weights.content
        completion = found[at.prompt_length :]
        for start, end, weight in weighted(at.segments, weights):
            completion[start:end] = weight
        return found

    def _states(self, shard: TensorFile, name: str, start: int, stop: int) -> torch.Tensor:
        stored = shard.rows(name, start, stop)
        if self.manifest.dtype != "float8_e4m3fn":
            return stored
        return dequantize(stored, shard.rows(f"{name}_scales", start, stop))

    def _numbers(self) -> dict[str, int]:
        """Return the row number of each id, after checks of each row of the index by itself."""
        numbers: dict[str, int] = {}
        for number, row in enumerate(self.index):
            at = f"{self.folder / INDEX_NAME}: row {row.id!r}"
            if row.id in numbers:
                raise ArtifactError(f"{at} comes twice, as number {numbers[row.id]} and {number}: {_AGAIN}")
            if row.length < 1 or not 0 <= row.prompt_length <= row.length:
                raise ArtifactError(
                    f"{at} has {row.length} tokens, {row.prompt_length} of them prompt; "
                    f"at least 1, and 0 to {row.length} are needed: {_AGAIN}"
                )
            if Path(row.shard).name != row.shard:
                raise ArtifactError(
                    f"{at} is in {row.shard!r}; the name of a file beside the index is needed: {_AGAIN}"
                )
            numbers[row.id] = number
        return numbers

    def _check(self, name: str, shard: TensorFile, rows: list[IndexRow]) -> None:
        width, stored = self.manifest.hidden_size, getattr(torch, self.manifest.dtype)
        tokens = 0
        for row in sorted(rows, key=lambda row: row.offset):
            if row.offset != tokens:
                raise ArtifactError(
                    f"{self.folder / INDEX_NAME}: row {row.id!r} begins at {row.offset} of {name}, "
                    f"the row before it ends at {tokens}: {_AGAIN}"
                )
            tokens += row.length
        needed = {
            "token_ids": ([tokens], torch.int32),
            "aux": ([tokens, 3 * width], stored),
            "last": ([tokens, width], stored),
        }
        if stored == torch.float8_e4m3fn:
            needed |= {"aux_scales": ([tokens, 3], torch.float32), "last_scales": ([tokens, 1], torch.float32)}
        for tensor, (wanted, dtype) in needed.items():
            if (found := shard.shape(tensor)) != wanted:
                raise ArtifactError(
                    f"{shard.path}: {tensor} has shape {found}; {INDEX_NAME} and {MANIFEST} (hidden size {width}) "
                    f"need {wanted}: {_AGAIN}"
                )
            if (held := shard.dtype(tensor)) != dtype:
                raise ArtifactError(
                    f"{shard.path}: {tensor} is {held}; {MANIFEST} (dtype {self.manifest.dtype}) needs {dtype}: "
                    f"{_AGAIN}"
                )
