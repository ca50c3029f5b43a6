"""States of earlier builds: whole shards by a link, single batches out of changed shards.

A row's states may differ in the last bit with the batch that it is computed in, so batches are looked up by their rows'
ids, in order. States are kept only if the backend confirmed their layers: a server that does not report its layers may
have been launched with others than the config names, and its states would be found again after it is launched
correctly.
"""

import platform
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from pipeline.core.errors import ArtifactError
from pipeline.core.files.contents import read_bytes
from pipeline.core.files.digests import sha256_file
from pipeline.core.files.json_file import to_json
from pipeline.core.files.tensors import TensorFile
from pipeline.core.reuse.cache import ReuseCache
from pipeline.core.reuse.index import CachedPiece
from pipeline.stages.extract.config import ExtractSection
from pipeline.stages.extract.plan import InputRow, ShardPlan

_PLAN_SETTINGS = {"max_length", "on_long", "tokens_per_batch", "shard_bytes"}
"""Settings that decide which rows and batches there are, and not the states of a batch."""


def states_key(settings: ExtractSection, target_sha256: str, layer_ids: list[int], engine: str) -> bytes:
    """Return everything besides a batch's own ids that decides its states, as JSON."""
    return to_json(
        [
            settings.model_dump(mode="json", exclude=_PLAN_SETTINGS),
            target_sha256,
            layer_ids,
            engine,
            _machine() if settings.backend == "transformers" else None,
        ]
    )


def _machine() -> list[str]:
    """Name the hardware and libraries on which a sum may be taken in another order."""
    try:
        model = re.search(rb"model name\s*:\s*(.*)", read_bytes(Path("/proc/cpuinfo")))
    except ArtifactError:
        model = None
    cpu = model[1].decode("utf-8", "replace") if model else platform.processor()
    gpus = (
        [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    return [
        platform.machine(),
        cpu,
        torch.backends.cpu.get_cpu_capability(),
        str(torch.get_num_threads()),
        torch.__version__,
        str(torch.version.cuda),
        *gpus,
    ]


class ReusableStates:
    """States of earlier builds for the batches of this one, and this build's states for later ones."""

    def __init__(self, cache: ReuseCache, rows: Sequence[InputRow], *, padded: bool, confirmed: bool) -> None:
        """Look up batches of ``rows``; ``confirmed`` is `Backend.confirms_layers`: without it nothing is added."""
        self._cache, self._rows, self._padded, self._confirmed = cache, rows, padded, confirmed
        self._files: dict[bytes, TensorFile | None] = {}

    def find(self, plan: ShardPlan) -> list[CachedPiece | None]:
        """Return where the states of each batch of a shard lie, in files that are present and whole."""
        found = self._cache.find([self._key(batch) for batch in plan.batches])
        return [
            piece if piece is not None and self._agrees(piece, batch) else None
            for piece, batch in zip(found, plan.batches, strict=True)
        ]

    def whole_file(self, plan: ShardPlan, pieces: Sequence[CachedPiece | None]) -> tuple[Path, str] | None:
        """Return the path of a file that is the shard, and its SHA-256 in hex; None if there is no such file."""
        first = pieces[0]
        if first is None or (file := self._file(first.segment)) is None or file.shape("token_ids") != [plan.tokens]:
            return None
        at = 0
        for piece in pieces:
            if piece is None or piece.segment != first.segment or piece.at != at:
                return None
            at += piece.rows
        return file.path, first.segment.hex()

    def read(self, piece: CachedPiece) -> dict[str, torch.Tensor]:
        """Return the tensors of a batch, as they are stored."""
        file = self._file(piece.segment)
        assert file is not None, "find returned this piece, so its file was present and whole"
        return {name: file.rows(name, piece.at, piece.at + piece.rows) for name in sorted(file.names)}

    def keep(self, plan: ShardPlan, path: Path) -> str:
        """Keep a shard that was written, if its layers are confirmed; return its SHA-256 in hex either way."""
        if not self._confirmed:
            return sha256_file(path)
        pieces, at = [], 0
        for batch in plan.batches:
            tokens = sum(len(self._rows[number].token_ids) for number in batch)
            pieces.append((self._key(batch), at, tokens))
            at += tokens
        return self._cache.add_file(path, pieces)

    def _key(self, batch: Sequence[int]) -> bytes:
        return self._cache.key(
            b"padded" if self._padded else b"packed", *(self._rows[number].checksum.encode() for number in batch)
        )

    def _file(self, segment: bytes) -> TensorFile | None:
        if segment not in self._files:
            path = self._cache.file(segment)
            self._files[segment] = None if path is None else TensorFile(path)
        return self._files[segment]

    def _agrees(self, piece: CachedPiece, batch: Sequence[int]) -> bool:
        """Return whether the ids of the piece are the batch's.

        States of other tokens are never taken, even from a damaged index.
        """
        ids = torch.cat([self._rows[number].token_ids for number in batch])
        file = self._file(piece.segment)
        if file is None or piece.rows != len(ids) or piece.at + piece.rows > file.shape("token_ids")[0]:
            return False
        return torch.equal(file.rows("token_ids", piece.at, piece.at + piece.rows), ids)
