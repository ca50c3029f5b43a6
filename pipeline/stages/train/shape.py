"""Shape of the drafter's layer.

It is the target's, except for the settings and for what a plain Llama layer does not have.
"""

from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import ConfigError
from pipeline.stages.train.config import TrainSection

_UNSUPPORTED_ROPE_KEYS = frozenset({"partial_rotary_factor", "mrope_section", "mrope_interleaved"})
"""Keys of a target's rotary embedding that the drafter must not have: it rotates whole heads by one position, and
engines would apply them."""
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes and rotary embedding of the drafter's one layer."""

    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]


def layer_shape(settings: TrainSection, text: Any) -> LayerShape:
    """Return the drafter's layer for a target with the transformers config ``text``.

    Raises:
        ConfigError: settings do not fit each other, or the target's config lacks a size.

    """
    heads, width = settings.num_heads or int(text.num_attention_heads), int(text.hidden_size)
    plain = getattr(text, "kv_lora_rank", None) is None and settings.num_heads is None
    head_dim = int((getattr(text, "head_dim", None) if plain else None) or width // heads)
    if settings.num_heads and width % (2 * heads):
        raise ConfigError(f"train.num_heads is {heads}: the target's width, {width}, must be a multiple of twice that")
    if settings.num_kv_heads and heads % settings.num_kv_heads:
        raise ConfigError(
            f"train.num_kv_heads is {settings.num_kv_heads}: the number of heads, {heads}, must be a multiple of it"
        )
    kv_heads = settings.num_kv_heads or int((getattr(text, "num_key_value_heads", None) if plain else None) or heads)
    if width % heads or heads % kv_heads or head_dim % 2:
        raise ConfigError(
            f"train.num_heads and train.num_kv_heads: {heads} heads of {head_dim} with {kv_heads} key heads at the "
            f"target's width, {width}, do not make a Llama layer (heads divide the width, key heads divide the heads, "
            "a head is even): set both"
        )
    intermediate = settings.intermediate_size or getattr(text, "intermediate_size", None)
    if intermediate is None:
        raise ConfigError(
            f"train.intermediate_size is null, and the config of this target ({text.model_type}) has no such size: "
            f"set it, to {4 * width} for example"
        )
    return LayerShape(
        intermediate_size=int(intermediate),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=next((float(found) for name in _EPSILONS if (found := getattr(text, name, None))), 1e-6),
        rope_parameters=rope_of(text, head_dim),
    )


def rope_of(text: Any, head_dim: int) -> dict[str, Any]:
    """Return the target's rotary embedding, as far as a drafter can have it.

    If the target has one for each kind of layer, it is the one of full attention. It is a plain one if the target has
    none, or if its scaling is made for heads of another width.
    """
    found = dict(getattr(text, "rope_parameters", None) or {})
    found = dict(found.get("full_attention", found))
    plain = {"rope_type": "default", "rope_theta": float(found.get("rope_theta", 10000.0))}
    if any(len(found.get(name) or []) not in (0, head_dim // 2) for name in ("short_factor", "long_factor")):
        return plain
    return plain | {name: value for name, value in found.items() if name not in _UNSUPPORTED_ROPE_KEYS}
