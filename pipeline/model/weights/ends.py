"""A target's two ends, embedding and head with the final norm, read from a checkpoint without the layers between."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline.core.errors import ArtifactError
from pipeline.core.files.json_file import read_json
from pipeline.core.files.tensors import TensorFile, is_finite
from pipeline.model.weights.source import WeightsSource, find_source
from pipeline.model.weights.target import Target, open_shape

_WRAPPERS = frozenset({"model", "language_model", "text_model", "transformer"})
"""Parts of a tensor's name that only say which module wraps which."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The parts of a target that a drafter shares with it."""

    embedding: torch.Tensor
    """[vocab, hidden]."""
    head: torch.Tensor
    """[vocab, hidden]."""
    norm: nn.Module
    """Final norm, with its weights."""
    config: Any
    """Transformers config of the text model."""
    architectures: list[str]
    """As the checkpoint's own config names them."""
    source: WeightsSource

    def to(self, device: torch.device) -> "Ends":
        """Move all of it to ``device``; tied weights stay tied."""
        embedding = self.embedding.to(device)
        head = embedding if self.head is self.embedding else self.head.to(device)
        return replace(self, embedding=embedding, head=head, norm=self.norm.to(device))

    def teacher_hidden(self, last: torch.Tensor) -> torch.Tensor:
        """Return the states that the head reads, from the states before the final norm; both [..., hidden]."""
        with torch.no_grad():
            normed: torch.Tensor = self.norm(last)
        return normed


def open_ends(folder: Path, *, dtype: torch.dtype = torch.float32) -> Ends:
    """Load only embedding, final norm and head, whatever the size of the rest.

    Raises:
        ArtifactError: the folder holds no checkpoint, or the checkpoint lacks one of these tensors, has it in another
            shape than its config says, or with values that are not finite.

    """
    shape = open_shape(find_source(folder))
    embedding_name, head_name, *norm_names = _end_names(shape)
    locations = locate_ends(shape)
    loaded = {
        name: _read_weights(path, stored, list(shape.model.get_parameter(name).shape), dtype)
        for name, (path, stored) in locations.items()
    }
    norm = shape.norm.to_empty(device="cpu").to(dtype)
    norm.load_state_dict({name.removeprefix(f"{shape.norm_name}."): loaded[name] for name in norm_names})
    embedding, head = loaded[embedding_name], loaded[head_name]
    return Ends(embedding, head, norm, shape.config, list(shape.model.config.architectures or []), shape.source)


def locate_ends(target: Target) -> dict[str, tuple[Path, str]]:
    """Return the file, and the name in it, of each tensor that `open_ends` loads, by its name in the code.

    Only headers are read.

    Raises:
        ArtifactError: the checkpoint lacks one of them, or names a file that does not exist.

    """
    from transformers.utils import cached_file

    source = target.source

    def locate(name: str) -> Path | None:
        path = cached_file(source.name, name, revision=source.revision, _raise_exceptions_for_missing_entries=False)
        return None if path is None else Path(path)

    files = _tensor_files(source, locate)
    names = dict.fromkeys(_end_names(target))
    renamed = {} if names.keys() <= files.keys() else _stored_names(target, files)
    stored = {name: _stored_name(name, files, renamed, source) for name in names}
    if absent := sorted({files[name] for name in stored.values() if not Path(files[name]).is_file()}):
        raise ArtifactError(
            f"{source.name}: model.safetensors.index.json names {', '.join(absent)}, which does not exist: fetch the "
            "whole checkpoint"
        )
    return {name: (Path(files[other]), other) for name, other in stored.items()}


def _stored_name(name: str, files: dict[str, str], renamed: dict[str, list[str]], source: WeightsSource) -> str:
    """Return the name in the checkpoint of a tensor of the code: equal, renamed on loading, or wrapped otherwise."""
    if name in files:
        return name
    matches = renamed.get(name) or [other for other in files if _without_wrappers(other) == _without_wrappers(name)]
    if len(matches) != 1:
        raise ArtifactError(
            f"{source.name}: needs exactly one tensor {name!r} (by that name, one that transformers turns into it, or "
            f"{_without_wrappers(name)!r} within {', '.join(sorted(_WRAPPERS))}); found {matches or 'none'} among "
            f"{len(files)} tensors"
        )
    return matches[0]


def _end_names(target: Target) -> list[str]:
    """Return the names in the code of the embedding, the head and the final norm's weights.

    The head is the embedding again where the two are tied.
    """
    names = {id(module): name for name, module in target.model.named_modules()}
    embedding = f"{names[id(target.model.get_input_embeddings())]}.weight"
    tied = bool(getattr(target.config, "tie_word_embeddings", False))
    head = embedding if tied else f"{names[id(target.head)]}.weight"
    return [embedding, head, *(f"{target.norm_name}.{name}" for name, _ in target.norm.named_parameters())]


def _tensor_files(source: WeightsSource, locate: Callable[[str], Path | None]) -> dict[str, str]:
    """Return tensor name to file, for a checkpoint of one file or of many with an index.

    A file that does not exist keeps its bare name.
    """
    if index := locate("model.safetensors.index.json"):
        parts = read_json(index).get("weight_map")
        if not isinstance(parts, dict):
            raise ArtifactError(
                f"{index}: has no weight_map, which says what file each tensor is in: fetch the checkpoint again"
            )
        return {
            name: str(index.parent / part) if (index.parent / part).exists() else str(locate(part) or part)
            for name, part in parts.items()
        }
    single = locate("model.safetensors")
    if single is None:
        raise ArtifactError(
            f"{source.name}: has neither model.safetensors nor model.safetensors.index.json; pickled weights are not "
            "read"
        )
    return dict.fromkeys(TensorFile(single).names, str(single))


def _stored_names(target: Target, stored: Iterable[str]) -> dict[str, list[str]]:
    """Return the stored names by the names that transformers gives those tensors on loading.

    The code and the checkpoints of an architecture may differ, as `embed_out` and `lm_head` do.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [change for change in get_model_conversion_mapping(target.model) if isinstance(change, WeightRenaming)]
    by_code_name: dict[str, list[str]] = {}
    for name in stored:
        by_code_name.setdefault(rename_source_key(name, renamings, [])[0], []).append(name)
    return by_code_name


def _read_weights(path: Path, name: str, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Read a tensor of weights.

    Raises:
        ArtifactError: its shape differs from the config's, or it holds values that are not finite.

    """
    file = TensorFile(path)
    if (stored := file.shape(name)) != shape:
        raise ArtifactError(
            f"{path}: {name} has shape {stored}, and {shape} by the target's config.json: weights and config do not "
            "belong to one model"
        )
    weights = file.tensor(name).to(dtype)
    if not is_finite(weights):
        raise ArtifactError(
            f"{path}: {name} has values that are not finite: the weights are damaged, fetch or make them again"
        )
    return weights


def _without_wrappers(name: str) -> str:
    """Return a tensor's name without the wrappers, which checkpoints and code nest in different orders."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)
