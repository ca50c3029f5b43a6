"""A target model, taken apart: opened whole for forward passes, or without its weights for its names and sizes."""

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from pipeline.core.errors import ArtifactError, InputError
from pipeline.core.process.garbage_collection import no_collector
from pipeline.model.weights.devices import DTYPES, usable_device
from pipeline.model.weights.source import WeightsSource, find_source, read_config

_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")
"""Names of the final norm in the architectures of transformers."""


class Target:
    """A causal language model: its decoder, layers, final norm, embedding and head.

    Raises:
        InputError: the architecture is not supported; the message names the part that was not found.

    """

    def __init__(self, model: Any, source: WeightsSource) -> None:
        self.model = model.eval().requires_grad_(False)
        self.source = source
        self.config = model.config.get_text_config()
        self.decoder = model.get_decoder()
        self.num_layers = int(self.config.num_hidden_layers)
        self.hidden_size = int(self.config.hidden_size)
        names = {id(module): name for name, module in model.named_modules()}
        self.layers = self._find_layers()
        self.norm = self._find_norm()
        self.head = self._find_head()
        self.vocab_size = int(self.head.weight.shape[0])
        self.layer_names = [names[id(layer)] for layer in self.layers]
        self.norm_name = names[id(self.norm)]
        forward = inspect.signature(self.decoder.forward).parameters
        self.cache_argument = "cache" if "cache" in forward else "past_key_values"

    @property
    def device(self) -> torch.device:
        """The embedding's device, where input ids go."""
        weight: torch.Tensor = self.model.get_input_embeddings().weight
        return weight.device

    def _find_layers(self) -> list[nn.Module]:
        for module in self.decoder.children():
            if isinstance(module, nn.ModuleList) and len(module) == self.num_layers:
                return list(module)
        children = [name for name, _ in self.decoder.named_children()]
        raise InputError(
            f"{self.source.name}: no list of {self.num_layers} layers in {type(self.decoder).__name__}; it has "
            f"{children}: this architecture is not supported"
        )

    def _find_norm(self) -> nn.Module:
        for name in _NORMS:
            if isinstance(module := getattr(self.decoder, name, None), nn.Module):
                return module
        raise InputError(
            f"{self.source.name}: no final norm in {type(self.decoder).__name__} (looked for {', '.join(_NORMS)}): "
            "this architecture is not supported"
        )

    def _find_head(self) -> Any:
        """Return the output head, a module whose ``weight`` is [vocab, hidden].

        A head with a bias is refused: the teacher and the drafter's own head are products with rows of the weight, so
        the bias would be lost.
        """
        head = self.model.get_output_embeddings()
        if not isinstance(weight := getattr(head, "weight", None), torch.Tensor) or weight.dim() != 2:
            raise InputError(
                f"{self.source.name}: no output head in {type(self.model).__name__}: its get_output_embeddings() gives "
                f"{type(head).__name__}, and a module with weights [vocabulary, hidden] is needed; it has "
                f"{[name for name, _ in self.model.named_children()]}: this architecture is not supported"
            )
        if getattr(head, "bias", None) is not None:
            raise InputError(
                f"{self.source.name}: the output head of {type(self.model).__name__} ({type(head).__name__}) has a "
                "bias, and no engine gives a drafter's head one: this architecture is not supported"
            )
        return head


@no_collector()
def open_model(folder: Path, *, dtype: str, device: str, attention: str = "sdpa") -> Target:
    """Load a whole target for forward passes. ``device`` is a torch device, or "auto" to spread it over all GPUs.

    Raises:
        ArtifactError: the folder holds no checkpoint, or it cannot be loaded.
        ConfigError: the device cannot be used, or a hub model has no revision.

    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    source = find_source(folder)
    try:
        model, loading = _auto_class(read_config(source)).from_pretrained(
            source.name,
            dtype=DTYPES[dtype],
            attn_implementation=attention,
            use_safetensors=True,
            device_map=device if device == "auto" else None,
            output_loading_info=True,
            **source.options(),
        )
    # RuntimeError: tensors of other shapes, or not enough memory
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise ArtifactError(f"{source.name}: transformers cannot load this model: {error}") from error
    if missing := sorted(loading["missing_keys"]):
        raise ArtifactError(
            f"{source.name}: the checkpoint lacks {len(missing)} weights that its config.json needs, first "
            f"{', '.join(missing[:3])}: transformers would draw them at random; fetch the whole checkpoint, or correct "
            "config.json"
        )
    return Target(model if device == "auto" else model.to(usable_device(device)), source)


def open_shape(source: WeightsSource) -> Target:
    """Return a target's names and sizes; its weights stay on the device `meta`, so nothing is loaded.

    Raises:
        ArtifactError: the config is missing, or transformers cannot make this model from it.

    """
    config = read_config(source)
    try:
        with torch.device("meta"):
            return Target(_auto_class(config).from_config(config, trust_remote_code=source.trust_remote_code), source)
    except (OSError, ValueError, ImportError) as error:
        raise ArtifactError(f"{source.name}: transformers cannot load this model's config: {error}") from error


def _auto_class(config: Any) -> Any:
    """Return the class that loads such a model: a causal language model, or a multimodal wrapper around one."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    own = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    return AutoModelForCausalLM if own or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText


@contextlib.contextmanager
def capturing(target: Target, layer_ids: list[int]) -> Iterator[dict[int, torch.Tensor]]:
    """Yield a dict that each forward pass fills with states: layer id to the input of that layer.

    Id n, the number of layers, is always among them: the final norm's input, before that norm.
    """
    captured: dict[int, torch.Tensor] = {}

    def capture_as(layer_id: int) -> Any:
        def capture(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            captured[layer_id] = args[0] if args else kwargs["hidden_states"]

        return capture

    handles = [
        (target.norm if layer_id == target.num_layers else target.layers[layer_id]).register_forward_pre_hook(
            capture_as(layer_id), with_kwargs=True
        )
        for layer_id in [*layer_ids, target.num_layers]
    ]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()
