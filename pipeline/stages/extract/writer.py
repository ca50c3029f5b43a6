"""The writer of shards: it works in the background, and a killed run goes on after its last shard.

Partial work lies in `.hidden.partial` beside the out (DVC deletes outs before a rerun, and ignores `*.partial`).
`key.json` in it identifies what it was made from: with other rows, weights or settings a run starts anew.
"""

import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import torch

from pipeline.core.errors import ConfigError, DiskError
from pipeline.core.files.atomic import remove_leftovers
from pipeline.core.files.json_file import read_json, write_json
from pipeline.core.files.tensors import TensorFile, is_finite, save_tensors
from pipeline.core.reuse.cache import ReuseCache
from pipeline.formats.hidden_states import quantize
from pipeline.formats.schema.hidden import StoredDtype
from pipeline.model.weights.devices import DTYPES
from pipeline.stages.extract.plan import InputRow, ShardPlan

_KEY = "key.json"
_IN_FLIGHT = 2
"""Batches waiting to be stored while the next is computed."""


def open_partial(hidden: Path, key: str, cache: ReuseCache) -> Path:
    """Return the folder for partial work.

    If it was made from something else it is emptied, after ``cache`` has adopted its known shards.
    """
    folder = hidden.with_name(f".{hidden.name}.partial")
    if folder.exists() and not ((folder / _KEY).is_file() and read_json(folder / _KEY) == {"key": key}):
        for shard in sorted(folder.glob("shard-*")):
            cache.adopt(shard)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _KEY, {"key": key})
    return folder


def close_partial(folder: Path) -> None:
    """Remove what does not belong to the artifact: the key, and files that a killed run had begun."""
    remove_leftovers(folder)
    (folder / _KEY).unlink()


def check_space(folder: Path, needed: int, tokens: int, token_bytes: int) -> None:
    """Print the space that the missing states need, and stop before the first batch if they do not fit.

    Raises:
        DiskError: with the numbers.

    """
    free = shutil.disk_usage(folder).free
    print(
        f"extract: {tokens:,} tokens to compute or copy, {token_bytes:,} bytes each: {needed:,} bytes; "
        f"{free:,} bytes are free",
        flush=True,
    )
    if needed > free:
        raise DiskError(
            f"{folder.parent}: hidden states need {needed:,} bytes more ({tokens:,} tokens of {token_bytes:,} bytes), "
            f"{free:,} are free: free some space, take fewer prompts, or store narrower numbers "
            "(extract.dtype: float8_e4m3fn)"
        )


def is_done(path: Path, shard: ShardPlan) -> bool:
    """Return whether an earlier run finished the shard."""
    return path.is_file() and TensorFile(path).shape("token_ids") == [shard.tokens]


class ShardWriter:
    """Collects the states of batches and writes a shard after its last batch.

    Storing overlaps the next forward pass.
    """

    def __init__(
        self,
        folder: Path,
        rows: list[InputRow],
        dtype: StoredDtype,
        written: Callable[[ShardPlan, Path], None] = lambda _plan, _path: None,
    ) -> None:
        """Write to ``folder``, and call ``written`` with each shard's plan and path once its file is whole."""
        self._folder, self._rows, self._dtype = folder, rows, dtype
        self._written = written
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="shard-writer")
        self._pending: list[Future[None]] = []
        self._parts: list[dict[str, torch.Tensor]] = []

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            self._wait(0)

    def add(self, batch: list[int], aux: torch.Tensor, last: torch.Tensor, finishes: ShardPlan | None) -> None:
        """Store a batch's states; ``finishes`` is the shard that this batch completes, if any."""
        self._wait(_IN_FLIGHT - 1)
        self._pending.append(self._pool.submit(self._store, batch, aux, last, finishes))

    def add_stored(self, tensors: dict[str, torch.Tensor], finishes: ShardPlan | None) -> None:
        """Copy a batch that an earlier build stored."""
        self._wait(_IN_FLIGHT - 1)
        self._pending.append(self._pool.submit(self._append, tensors, finishes))

    def _wait(self, most: int) -> None:
        while len(self._pending) > most:
            self._pending.pop(0).result()

    def _store(self, batch: list[int], aux: torch.Tensor, last: torch.Tensor, finishes: ShardPlan | None) -> None:
        token_ids = torch.cat([self._rows[number].token_ids for number in batch])
        tensors = {"token_ids": token_ids}
        for name, state, parts in (("aux", aux, 3), ("last", last, 1)):
            stored = _stored(name, state, parts, self._dtype)
            checked = stored.get(f"{name}_scales", stored[name])  # a scale is finite exactly if its numbers are
            if not is_finite(checked):
                raise self._not_finite(batch, name, int((~torch.isfinite(checked)).any(-1).nonzero()[0]), state)
            tensors |= stored
        self._append(tensors, finishes)

    def _not_finite(self, batch: list[int], name: str, token: int, state: torch.Tensor) -> ConfigError:
        """Return an error that names the row, and whether computing or storing was too narrow."""
        values, at = state[token].float(), token
        for number in batch:
            row = self._rows[number]
            if at < len(row.token_ids):
                break
            at -= len(row.token_ids)
        if torch.isfinite(values).all():
            fault = f"reaches {values.abs().max():.4g}, more than {self._dtype} holds: set extract.dtype to bfloat16"
        else:
            fault = (
                "was not computed as a finite number: set extract.compute_dtype to bfloat16 or float32; "
                "if it is already, check the weights"
            )
        return ConfigError(f"row {row.id!r}: the state {name!r} of token {at} {fault}")

    def _append(self, tensors: dict[str, torch.Tensor], finishes: ShardPlan | None) -> None:
        self._parts.append(tensors)
        if finishes is not None:
            whole = {name: torch.cat([part[name] for part in self._parts]) for name in self._parts[0]}
            self._parts = []
            path = self._folder / finishes.name
            save_tensors(path, whole)
            self._written(finishes, path)


def _stored(name: str, state: torch.Tensor, parts: int, dtype: StoredDtype) -> dict[str, torch.Tensor]:
    """Return states as they are stored, on the CPU."""
    if dtype == "float8_e4m3fn":
        narrow, scales = quantize(state, parts)
        return {name: narrow.cpu(), f"{name}_scales": scales.cpu()}
    return {name: state.to(DTYPES[dtype]).cpu()}
