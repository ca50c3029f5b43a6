"""The stand-in target: a small Llama as plain tensors, its forward pass, and its checkpoint in Hugging Face's layout.

One function runs it for training, for greedy checks and for serving. The caller passes in the attention, so a caller
with a cache and a caller with packed rows share everything else. transformers loads the checkpoint as LlamaForCausalLM.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.core.errors import ArtifactError
from pipeline.core.files.json_file import read_json, write_json
from pipeline.core.files.tensors import load_tensors, save_tensors

ROPE_THETA = 10000.0
EPS = 1e-6

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Layer number, queries, keys and values, each [B, heads, T, head width], to the mixed values of the same shape."""


class LlamaShape(NamedTuple):
    """Sizes of the model."""

    layers: int
    width: int
    mlp: int
    heads: int


class LlamaLayer(NamedTuple):
    """Weights of one layer; projections are [out, in], and those that read the same input are stacked."""

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Llama(NamedTuple):
    """All weights. The rows of ``embed`` and ``head`` are ids, or places in a table of live ids."""

    shape: LlamaShape
    embed: Tensor
    layers: tuple[LlamaLayer, ...]
    norm: Tensor
    head: Tensor

    def tensors(self) -> list[Tensor]:
        """Return every weight once, in a fixed order."""
        return [self.embed, *(tensor for layer in self.layers for tensor in layer), self.norm, self.head]

    def to(self, dtype: torch.dtype) -> "Llama":
        """Return a copy in another number type, without gradients."""
        layers = tuple(LlamaLayer(*(tensor.detach().to(dtype) for tensor in layer)) for layer in self.layers)
        return Llama(
            self.shape,
            self.embed.detach().to(dtype),
            layers,
            self.norm.detach().to(dtype),
            self.head.detach().to(dtype),
        )


def initial(shape: LlamaShape, rows: int, std: float, generator: torch.Generator) -> Llama:
    """Return random weights: normal with ``std``, and norms of one."""

    def normal(*size: int) -> Tensor:
        return torch.empty(size).normal_(0.0, std, generator=generator)

    width, mlp = shape.width, shape.mlp
    layers = tuple(
        LlamaLayer(
            torch.ones(width),
            normal(3 * width, width),
            normal(width, width),
            torch.ones(width),
            normal(2 * mlp, width),
            normal(width, mlp),
        )
        for _ in range(shape.layers)
    )
    return Llama(shape, normal(rows, width), layers, torch.ones(width), normal(rows, width))


def rotations(positions: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [..., head width] for ``positions``, with repeated halves as Llama has them."""
    frequencies = ROPE_THETA ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = positions.to(torch.float64)[..., None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def hidden(model: Llama, places: Tensor, positions: Tensor, attend: Attend) -> Tensor:
    """Run the layers over ``places`` (rows of the embedding) at ``positions``, both [B, T].

    Returns the last states after the final norm, [B, T, width].
    """
    shape, (batch, length) = model.shape, places.shape
    head_width = shape.width // shape.heads
    cos, sin = (table[:, None] for table in rotations(positions, head_width, model.embed.dtype))
    x = functional.embedding(places, model.embed)
    for number, layer in enumerate(model.layers):
        mixed = functional.linear(functional.rms_norm(x, (shape.width,), layer.attention_norm, EPS), layer.qkv)
        q, k, v = mixed.view(batch, length, 3, shape.heads, head_width).permute(2, 0, 3, 1, 4)
        values = attend(number, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
        x = x + functional.linear(values.transpose(1, 2).reshape(batch, length, shape.width), layer.out)
        gate, up = functional.linear(functional.rms_norm(x, (shape.width,), layer.mlp_norm, EPS), layer.gate_up).chunk(
            2, dim=-1
        )
        x = x + functional.linear(functional.silu(gate) * up, layer.down)
    return functional.rms_norm(x, (shape.width,), model.norm, EPS)


_PART = "model.layers.{}.{}.weight"


def save_checkpoint(folder: Path, model: Llama, *, end: int, pad: int | None, positions: int) -> None:
    """Write ``model``, whose tables have a row for every id, as transformers' LlamaForCausalLM.

    ``end`` and ``pad`` are token ids; ``positions`` is the longest sequence.
    """
    tensors = {"model.embed_tokens.weight": model.embed, "model.norm.weight": model.norm, "lm_head.weight": model.head}
    for number, layer in enumerate(model.layers):
        parts = dict(zip(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), layer.qkv.chunk(3), strict=True))
        parts |= dict(zip(("mlp.gate_proj", "mlp.up_proj"), layer.gate_up.chunk(2), strict=True))
        parts |= {"self_attn.o_proj": layer.out, "mlp.down_proj": layer.down}
        parts |= {"input_layernorm": layer.attention_norm, "post_attention_layernorm": layer.mlp_norm}
        tensors |= {_PART.format(number, name): tensor for name, tensor in parts.items()}
    save_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    config = {**_config(model), "max_position_embeddings": positions, "eos_token_id": end, "pad_token_id": pad}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": end, "pad_token_id": pad, "do_sample": False})


def _config(model: Llama) -> dict[str, Any]:
    shape = model.shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.width,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.width // shape.heads,
        "hidden_act": "silu",
        "rms_norm_eps": EPS,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": len(model.embed),
        "bos_token_id": None,
        "dtype": "float32",
    }


def load_checkpoint(folder: Path) -> Llama:
    """Read a checkpoint that `save_checkpoint` wrote.

    Raises:
        ArtifactError: a file is missing or cut short, or the checkpoint is of another kind.

    """
    config = read_json(folder / "config.json")
    tensors = load_tensors(folder / "model.safetensors")
    try:
        shape = LlamaShape(
            config["num_hidden_layers"],
            config["hidden_size"],
            config["intermediate_size"],
            config["num_attention_heads"],
        )
        layers = tuple(_layer(tensors, number) for number in range(shape.layers))
        return Llama(
            shape, tensors["model.embed_tokens.weight"], layers, tensors["model.norm.weight"], tensors["lm_head.weight"]
        )
    except (KeyError, TypeError) as error:
        raise ArtifactError(
            f"{folder}: not a checkpoint of the stand-in: {error} is missing; run `dvc repro target`"
        ) from error


def _layer(tensors: dict[str, Tensor], number: int) -> LlamaLayer:
    def part(name: str) -> Tensor:
        return tensors[_PART.format(number, name)]

    return LlamaLayer(
        part("input_layernorm"),
        torch.cat([part(f"self_attn.{name}_proj") for name in "qkv"]),
        part("self_attn.o_proj"),
        part("post_attention_layernorm"),
        torch.cat([part("mlp.gate_proj"), part("mlp.up_proj")]),
        part("mlp.down_proj"),
    )
