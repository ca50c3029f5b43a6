"""Checkpoints of a drafter: `config.json` and `model.safetensors` in a folder."""

from pathlib import Path

import torch

from pipeline.core.errors import ArtifactError
from pipeline.core.files.atomic import writing_folder
from pipeline.core.files.json_file import read_model, write_json
from pipeline.core.files.tensors import is_finite, load_tensors, save_tensors
from pipeline.drafter.config import DrafterConfig
from pipeline.drafter.drafter import Drafter
from pipeline.drafter.vocabulary import vocabulary_of

CONFIG = "config.json"
WEIGHTS = "model.safetensors"


def save_drafter(folder: Path, config: DrafterConfig, tensors: dict[str, torch.Tensor]) -> None:
    """Write a checkpoint; the folder appears whole or not at all."""
    with writing_folder(folder) as partial:
        save_tensors(partial / WEIGHTS, tensors)
        write_json(partial / CONFIG, config)


def load_drafter(folder: Path, embedding: torch.Tensor, target_sha256: str) -> Drafter:
    """Load a checkpoint and check it against its config and the target.

    Raises:
        ArtifactError: it is missing, damaged or made for another target, or a width, name or vocabulary map does not
            fit.

    """
    config = read_model(folder / CONFIG, DrafterConfig)
    if config.target_sha256 != target_sha256:
        raise ArtifactError(
            f"{folder}: made for target {config.target_name!r} ({config.target_sha256[:16]}); "
            f"this build's target is {target_sha256[:16]}: run `dvc repro train`"
        )
    return assemble(config, load_tensors(folder / WEIGHTS), embedding, str(folder / WEIGHTS))


def stored_vocabulary(config: DrafterConfig, tensors: dict[str, torch.Tensor], where: str) -> torch.Tensor:
    """Return the token ids int64 [draft_vocab] of a checkpoint's map, whose sizes must be those of its config.

    Raises:
        ArtifactError: one half of the map is missing, has another size or type, or does not fit the other half.

    """
    needed = {"d2t": ([config.draft_vocab_size], torch.int64), "t2d": ([config.vocab_size], torch.bool)}
    if missing := needed.keys() - tensors.keys():
        raise ArtifactError(f"{where}: lacks {sorted(missing)}: without the map, draft id i would be taken for token i")
    for name, (shape, dtype) in needed.items():
        if (found := (list(tensors[name].shape), tensors[name].dtype)) != (shape, dtype):
            raise ArtifactError(
                f"{where}: {name} is {found[1]} {found[0]}; {CONFIG} needs {dtype} {shape}: "
                "the map is of another drafter, run `dvc repro train`"
            )
    return vocabulary_of(tensors["d2t"], tensors["t2d"], where)


def check_tensors(config: DrafterConfig, tensors: dict[str, torch.Tensor], where: str) -> torch.Tensor:
    """Check that a checkpoint has exactly the tensors of its config.

    Return the token ids int64 [draft_vocab] of its map.

    Raises:
        ArtifactError: a name, a shape or the map does not fit, or a weight is not finite.

    """
    used = stored_vocabulary(config, tensors, where)
    try:
        with torch.device("meta"):
            like = Drafter(
                config,
                torch.empty(config.vocab_size, config.hidden_size),
                torch.empty(config.draft_vocab_size, dtype=torch.int64),
            )
    except (ValueError, KeyError) as error:
        raise ArtifactError(
            f"{where}: transformers cannot make a layer of its {CONFIG}: {error}; "
            f"its rotary embedding is {config.rope_parameters}"
        ) from error
    wanted = {name: list(tensor.shape) for name, tensor in like.state_dict().items()}
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if wanted != found:
        differing = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        listed = "; ".join(f"{name}: file {found.get(name)}, config {wanted.get(name)}" for name in differing)
        raise ArtifactError(f"{where}: does not fit its {CONFIG}: {listed}")
    for name, tensor in tensors.items():
        if name not in ("d2t", "t2d") and not (tensor.is_floating_point() and is_finite(tensor)):
            raise ArtifactError(
                f"{where}: {name} is {tensor.dtype}, and must hold finite floating-point numbers: "
                "the checkpoint is damaged, run `dvc repro train`"
            )
    return used


def assemble(config: DrafterConfig, tensors: dict[str, torch.Tensor], embedding: torch.Tensor, where: str) -> Drafter:
    """Build a drafter from its config and tensors; names and shapes must fit exactly.

    Raises:
        ArtifactError: they do not.

    """
    if embedding.shape != (config.vocab_size, config.hidden_size):
        raise ArtifactError(
            f"{where}: needs a target embedding of {config.vocab_size} x {config.hidden_size}; "
            f"the target's is {' x '.join(map(str, embedding.shape))}"
        )
    drafter = Drafter(config, embedding, check_tensors(config, tensors, where))
    drafter.load_state_dict(tensors)
    return drafter
