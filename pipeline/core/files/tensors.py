"""Tensor files (safetensors): sizes are checked before mapping, writes are atomic, equal tensors give equal bytes.

This module imports torch, so a stage without tensors does not import it.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors import SafetensorError, safe_open

from pipeline.core.errors import ArtifactError
from pipeline.core.files.atomic import writing

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}
_HEADER_ALIGNMENT = 8


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors as one safetensors file; equal tensors and metadata give equal bytes.

    Tensors are ordered by the width of their dtype, widest first, then by name. The safetensors library is not used for
    writing: its order of metadata keys changes between runs, and it holds a second copy of all data.

    Raises:
        DiskError: the disk is full or the folder not writable.

    """
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    end = 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    encoded = orjson.dumps(header)
    encoded += b" " * (-len(encoded) % _HEADER_ALIGNMENT)
    with writing(path) as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in names:
            flat = tensors[name].detach().cpu().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether every value of a tensor is finite.

    The minimum and the maximum are NaN when any value is NaN. `torch.isfinite` takes some 50 times as long on a CPU.
    """
    return not tensor.numel() or all(map(math.isfinite, tensor.aminmax()))


def _size_in_header(path: Path) -> str:
    """Describe the size that the header of a broken file promises; empty when the header cannot be read."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = orjson.loads(file.read(min(length, path.stat().st_size)))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (orjson.JSONDecodeError, AttributeError, TypeError, KeyError, IndexError):
            return ""
    return f"; its header says {8 + length + max(ends, default=0):,}"


class TensorFile:
    """One safetensors file, memory-mapped; rows are copied out on request.

    Raises:
        ArtifactError: the file is missing, cut short, or not a safetensors file.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            size = f"{path.stat().st_size:,} bytes{_size_in_header(path)}" if path.is_file() else "no such file"
            raise ArtifactError(
                f"{path}: not a whole safetensors file ({size}): {error}; delete it and run again"
            ) from error
        self.names: set[str] = set(self._file.keys())
        self.metadata: dict[str, str] = self._file.metadata() or {}

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor, from the header.

        Raises:
            ArtifactError: there is no such tensor.

        """
        return list(self._slice(name).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor, from the header.

        Raises:
            ArtifactError: there is no such tensor, or this program does not write its type.

        """
        type_name = self._slice(name).get_dtype()
        if type_name not in _TYPES:
            raise ArtifactError(f"{self.path}: {name} is of type {type_name}; known are {sorted(_TYPES)}")
        return _TYPES[type_name]

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Return a copy of the rows [start, stop) of a tensor.

        Raises:
            ArtifactError: there is no such tensor, or it has fewer rows.

        """
        piece = self._slice(name)
        if not 0 <= start <= stop <= piece.get_shape()[0]:
            raise ArtifactError(
                f"{self.path}: {name} has {piece.get_shape()[0]} rows; asked for [{start}, {stop}): "
                "index and shard disagree"
            )
        return torch.as_tensor(piece[start:stop]).clone()

    def tensor(self, name: str) -> torch.Tensor:
        """Return a whole tensor.

        Raises:
            ArtifactError: there is no such tensor.

        """
        self._slice(name)
        return torch.as_tensor(self._file.get_tensor(name))

    def _slice(self, name: str) -> Any:
        if name not in self.names:
            raise ArtifactError(f"{self.path}: has no tensor {name!r}; it has {sorted(self.names)}")
        return self._file.get_slice(name)


def load_tensors(path: Path, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
    """Read tensors of a safetensors file: those in ``names``, or all.

    Raises:
        ArtifactError: as `TensorFile`.

    """
    file = TensorFile(path)
    return {name: file.tensor(name) for name in (sorted(file.names) if names is None else names)}
