"""The only loader of a target's weights: the whole model for forward passes, or only embedding, final norm and head for training.

Conventions of layer ids, as in `schema/hidden.py`: id k is the input of layer k; id n (the number of layers) is the last layer's
output, which the final norm reads.
"""

import contextlib
import hashlib
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from pipeline.core.errors import ArtifactError, ConfigError, InputError
from pipeline.core.files.digests import sha256_folder
from pipeline.core.files.json_file import read_json, to_json
from pipeline.core.files.tensors import TensorFile, is_finite
from pipeline.core.process.garbage_collection import no_collector

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_WRAPPERS = frozenset({"model", "language_model", "text_model", "transformer"})
"""Parts of a tensor's name that say only which module wraps which."""
_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a target's weights come from."""

    name: str
    """Folder, or hub id."""
    revision: str | None = None
    trust_remote_code: bool = False
    sha256: str = ""
    """Digest of the folder's files, or of the hub id and revision."""

    def options(self) -> dict[str, Any]:
        """Arguments for transformers' `from_pretrained`."""
        return {"revision": self.revision, "trust_remote_code": self.trust_remote_code}


def find_source(folder: Path) -> Source:
    """Read where the weights are: ``folder`` is a checkpoint, or holds `target.json` that names one elsewhere.

    Raises:
        ArtifactError: it is neither.
        ConfigError: it names a hub model without a revision.

    """
    if (pointer := folder / "target.json").is_file():
        named = read_json(pointer)
        if named.get("revision") is None and not Path(named["model"]).is_dir():
            raise ConfigError(
                f"target.model is {named['model']!r}, no local folder, so a hub model, and target.revision is null: what the hub gives would change; "
                "set target.revision to the commit that is meant, or target.model to a folder"
            )
        digest = hashlib.sha256(to_json([named["model"], named.get("revision")])).hexdigest()
        return Source(named["model"], named.get("revision"), bool(named.get("trust_remote_code")), digest)
    if not (folder / "config.json").is_file():
        raise ArtifactError(
            f"{folder}: has neither config.json (a checkpoint) nor target.json (the name of one); run `dvc repro target`"
        )
    return Source(str(folder), sha256=sha256_folder(folder))


@no_collector()
def read_config(source: Source) -> Any:
    """Transformers config of a target, without its weights; ``.get_text_config()`` of it is the text model's.

    Raises:
        ArtifactError: it cannot be read.

    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source.name, **source.options())
    except (OSError, ValueError, ImportError) as error:
        raise ArtifactError(f"{source.name}: transformers cannot read this model's config: {error}") from error


def _auto_class(config: Any) -> Any:
    """Class that loads such a model: a causal language model, or a multimodal wrapper around one."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    own = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    return AutoModelForCausalLM if own or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText


def use_threads(threads: int | None) -> None:
    """Fix the number of CPU threads: sums are split by it, so the last bit of a result may depend on it."""
    if threads is not None:
        torch.set_num_threads(threads)


class Target:
    """A causal language model, taken apart: its decoder, layers, final norm, embedding and head."""

    def __init__(self, model: Any, source: Source) -> None:
        self.model = model.eval().requires_grad_(False)
        self.source = source
        self.config = model.config.get_text_config()
        self.decoder = model.get_decoder()
        self.num_layers = int(self.config.num_hidden_layers)
        self.hidden_size = int(self.config.hidden_size)
        names = {id(module): name for name, module in model.named_modules()}
        self.layers = self._layers()
        self.norm = self._norm()
        self.head = self._head()
        self.vocab_size = int(self.head.weight.shape[0])
        self.layer_names = [names[id(layer)] for layer in self.layers]
        self.norm_name = names[id(self.norm)]
        forward = inspect.signature(self.decoder.forward).parameters
        self.cache_argument = "cache" if "cache" in forward else "past_key_values"

    @property
    def device(self) -> torch.device:
        """Where input ids go: the embedding's device."""
        weight: torch.Tensor = self.model.get_input_embeddings().weight
        return weight.device

    def _layers(self) -> list[nn.Module]:
        for module in self.decoder.children():
            if isinstance(module, nn.ModuleList) and len(module) == self.num_layers:
                return list(module)
        children = [name for name, _ in self.decoder.named_children()]
        raise InputError(
            f"{self.source.name}: no list of {self.num_layers} layers in {type(self.decoder).__name__}; it has {children}: this architecture is not supported"
        )

    def _norm(self) -> nn.Module:
        for name in _NORMS:
            if isinstance(module := getattr(self.decoder, name, None), nn.Module):
                return module
        raise InputError(
            f"{self.source.name}: no final norm in {type(self.decoder).__name__} (looked for {', '.join(_NORMS)}): this architecture is not supported"
        )

    def _head(self) -> Any:
        """Output head: a module whose ``weight`` is [vocab, hidden]. A bias would be lost: the teacher and the drafter's own head are products with rows."""
        head = self.model.get_output_embeddings()
        if not isinstance(weight := getattr(head, "weight", None), torch.Tensor) or weight.dim() != 2:
            raise InputError(
                f"{self.source.name}: no output head in {type(self.model).__name__}: its get_output_embeddings() gives {type(head).__name__}, and a module with "
                f"weights [vocabulary, hidden] is needed; it has {[name for name, _ in self.model.named_children()]}: this architecture is not supported"
            )
        if getattr(head, "bias", None) is not None:
            raise InputError(
                f"{self.source.name}: the output head of {type(self.model).__name__} ({type(head).__name__}) has a bias; a drafter's has none, in every engine: "
                "this architecture is not supported"
            )
        return head


@no_collector()
def open_model(folder: Path, *, dtype: str, device: str, attention: str = "sdpa") -> Target:
    """Load a whole target for forward passes. ``device`` is a torch device, or "auto" to spread the model over all GPUs.

    Raises:
        ArtifactError: no checkpoint there, or it cannot be loaded.

    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    source = find_source(folder)
    try:
        model, found = _auto_class(read_config(source)).from_pretrained(
            source.name,
            dtype=DTYPES[dtype],
            attn_implementation=attention,
            use_safetensors=True,
            device_map=device if device == "auto" else None,
            output_loading_info=True,
            **source.options(),
        )
    except (
        OSError,
        ValueError,
        ImportError,
        RuntimeError,
        SafetensorError,
    ) as error:  # RuntimeError: tensors of other shapes, or no memory
        raise ArtifactError(f"{source.name}: transformers cannot load this model: {error}") from error
    if missing := sorted(found["missing_keys"]):
        raise ArtifactError(
            f"{source.name}: the checkpoint lacks {len(missing)} weights that its config.json needs, first {', '.join(missing[:3])}: transformers would draw them "
            "at random; fetch the checkpoint whole, or correct config.json"
        )
    return Target(model if device == "auto" else model.to(usable_device(device)), source)


def usable_device(name: str) -> torch.device:
    """Give the device of that name.

    Raises:
        ConfigError: there is no such device here.

    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {name!r} cannot be used here: {str(error).splitlines()[0]}; set extract.device, train.device and evaluate.device"
        ) from error
    return device


@contextlib.contextmanager
def capturing(target: Target, layer_ids: list[int]) -> Iterator[dict[int, torch.Tensor]]:
    """Give a dict that each forward pass fills: layer id to its input; id n to the final norm's input, before that norm."""
    caught: dict[int, torch.Tensor] = {}

    def hook(number: int) -> Any:
        def take(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            caught[number] = args[0] if args else kwargs["hidden_states"]

        return take

    handles = [
        (target.norm if number == target.num_layers else target.layers[number]).register_forward_pre_hook(
            hook(number), with_kwargs=True
        )
        for number in [*layer_ids, target.num_layers]
    ]
    try:
        yield caught
    finally:
        for handle in handles:
            handle.remove()


def default_layers(num_layers: int) -> list[int]:
    """Layers that SGLang and vLLM read when a drafter's config names none, by input convention."""
    return [2, num_layers // 2, num_layers - 3]


def auxiliary_layers(layers: list[int] | None, num_layers: int) -> list[int]:
    """Layer ids to take, by input convention: those asked for, or the engines' own.

    Raises:
        ConfigError: not three different ids in order, or one out of range.

    """
    chosen = default_layers(num_layers) if layers is None else layers
    where = f"extract.layers is {layers}" if layers is not None else f"extract.layers is null, which gives {chosen}"
    if len(chosen) != 3 or sorted(set(chosen)) != chosen:
        raise ConfigError(
            f"{where}: three different layer ids are needed, low to high; this target has {num_layers} layers: name them in conf/extract/"
        )
    if chosen[0] < 0 or chosen[-1] > num_layers:
        raise ConfigError(
            f"{where}: out of range; the target has layers 0 to {num_layers - 1}, and {num_layers} names the last layer's output"
        )
    return chosen


@dataclass(frozen=True, slots=True)
class Ends:
    """A target's two ends: what a drafter shares with it, without the layers between."""

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
    source: Source

    def to(self, device: torch.device) -> "Ends":
        """Move all of it to ``device``; tied weights stay tied."""
        embedding = self.embedding.to(device)
        head = embedding if self.head is self.embedding else self.head.to(device)
        return replace(self, embedding=embedding, head=head, norm=self.norm.to(device))

    def teacher_hidden(self, last: torch.Tensor) -> torch.Tensor:
        """States before the final norm to what the head reads."""
        with torch.no_grad():
            out: torch.Tensor = self.norm(last)
        return out


def open_shape(source: Source) -> Target:
    """Names and sizes of a target, without its weights (they are on the device `meta`).

    Raises:
        ArtifactError: there is no config, or transformers cannot make this model of it.

    """
    config = read_config(source)
    try:
        with torch.device("meta"):
            return Target(_auto_class(config).from_config(config, trust_remote_code=source.trust_remote_code), source)
    except (OSError, ValueError, ImportError) as error:
        raise ArtifactError(f"{source.name}: transformers cannot load this model's config: {error}") from error


def open_ends(folder: Path, *, dtype: torch.dtype = torch.float32) -> Ends:
    """Load only embedding, final norm and head, whatever the size of the rest.

    Raises:
        ArtifactError: no checkpoint there, or it lacks these tensors, or they hold no numbers.

    """
    shape = open_shape(find_source(folder))
    embedding_name, head_name, *norm_names = _end_names(shape)
    places = locate_ends(shape)
    loaded = {name: _read(*places[name], list(shape.model.get_parameter(name).shape), dtype) for name in places}
    norm = shape.norm.to_empty(device="cpu").to(dtype)
    norm.load_state_dict({name.removeprefix(f"{shape.norm_name}."): loaded[name] for name in norm_names})
    embedding, head = loaded[embedding_name], loaded[head_name]
    return Ends(embedding, head, norm, shape.config, list(shape.model.config.architectures or []), shape.source)


def locate_ends(target: Target) -> dict[str, tuple[Path, str]]:
    """File, and name in it, of each tensor that `open_ends` loads, by its name in the code. Reads headers only.

    Raises:
        ArtifactError: the checkpoint lacks one of them, or names a file that is not there.

    """
    from transformers.utils import cached_file

    source = target.source

    def locate(name: str) -> Path | None:
        found = cached_file(source.name, name, revision=source.revision, _raise_exceptions_for_missing_entries=False)
        return None if found is None else Path(found)

    files = _tensor_files(source, locate)
    stored = dict.fromkeys(_end_names(target), "")
    renamed = {} if stored.keys() <= files.keys() else _renamed(target, files)
    for name in stored:
        matches = (
            [name]
            if name in files
            else renamed.get(name) or [other for other in files if _plain(other) == _plain(name)]
        )
        if len(matches) != 1:
            raise ArtifactError(
                f"{source.name}: needs exactly one tensor {name!r} (by that name, one that transformers turns into it, or {_plain(name)!r} within "
                f"{', '.join(sorted(_WRAPPERS))}); found {matches or 'none'} among {len(files)} tensors"
            )
        stored[name] = matches[0]
    if absent := sorted({files[name] for name in stored.values() if not Path(files[name]).is_file()}):
        raise ArtifactError(
            f"{source.name}: model.safetensors.index.json names {', '.join(absent)}, not there: fetch the checkpoint whole"
        )
    return {name: (Path(files[other]), other) for name, other in stored.items()}


def _end_names(target: Target) -> list[str]:
    """Names in the code: of the embedding, the head (the embedding again where they are tied), and the final norm's weights."""
    names = {id(module): name for name, module in target.model.named_modules()}
    embedding = f"{names[id(target.model.get_input_embeddings())]}.weight"
    tied = bool(getattr(target.config, "tie_word_embeddings", False))
    head = embedding if tied else f"{names[id(target.head)]}.weight"
    return [embedding, head, *(f"{target.norm_name}.{name}" for name, _ in target.norm.named_parameters())]


def _tensor_files(source: Source, locate: Any) -> dict[str, str]:
    """Tensor name to file, for checkpoints of one file and for those with an index; a file that is not there keeps its bare name."""
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
            f"{source.name}: has neither model.safetensors nor model.safetensors.index.json; pickled weights are not read"
        )
    return dict.fromkeys(TensorFile(single).names, str(single))


def _renamed(target: Target, stored: Iterable[str]) -> dict[str, list[str]]:
    """Stored names by the names that transformers gives those tensors on loading: code and checkpoints of an architecture may differ (`embed_out`, `lm_head`)."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [change for change in get_model_conversion_mapping(target.model) if isinstance(change, WeightRenaming)]
    found: dict[str, list[str]] = {}
    for name in stored:
        found.setdefault(rename_source_key(name, renamings, [])[0], []).append(name)
    return found


def _read(path: Path, name: str, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Read a tensor of weights.

    Raises:
        ArtifactError: it has another shape than the config gives it, or holds something else than finite numbers.

    """
    file = TensorFile(path)
    if (stored := file.shape(name)) != shape:
        raise ArtifactError(
            f"{path}: {name} has shape {stored}; by the target's config.json it has {shape}: weights and config are not of one model"
        )
    found = file.tensor(name).to(dtype)
    if not is_finite(found):
        raise ArtifactError(
            f"{path}: {name} has values that are no finite numbers: the weights are damaged, fetch or make them again"
        )
    return found


def _plain(name: str) -> str:
    """Give a tensor's name without the wrappers, which checkpoints and code nest in different orders."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)
