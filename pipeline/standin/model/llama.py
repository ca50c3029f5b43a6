"""A small Llama as plain tensors: what the stand-in target is, how it runs, and its checkpoint in Hugging Face's layout.

The same function runs it for training, for greedy checks and for serving: attention is handed in, so a caller with a
cache and a caller with packed documents share everything else. transformers loads the checkpoint as LlamaForCausalLM.
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
"""Layer, queries, keys and values, each [B, heads, T, head width], to the mixed values of the same shape."""


class Shape(NamedTuple):
    """Sizes of the model."""

    layers: int
    width: int
    mlp: int
    heads: int


class Layer(NamedTuple):
    """Weights of one layer; projections are [out, in], with those that read the same input stacked."""

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Llama(NamedTuple):
    """All weights. Rows of ``embed`` and ``head`` are ids, or places in a table of live ids."""

    shape: Shape
    embed: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor

    def tensors(self) -> list[Tensor]:
        """Every weight once, in a fixed order."""
        return [self.embed, *(tensor for layer in self.layers for tensor in layer), self.norm, self.head]

    def to(self, dtype: torch.dtype) -> "Llama":
        """Give a copy in another number type, without gradients."""
        layers = tuple(Layer(*(tensor.detach().to(dtype) for tensor in layer)) for layer in self.layers)
        return Llama(
            self.shape,
            self.embed.detach().to(dtype),
            layers,
            self.norm.detach().to(dtype),
            self.head.detach().to(dtype),
        )


def initial(shape: Shape, rows: int, std: float, generator: torch.Generator) -> Llama:
    """Random weights: normal with ``std``, norms at one."""

    def normal(*size: int) -> Tensor:
        return torch.empty(size).normal_(0.0, std, generator=generator)

    width, mlp = shape.width, shape.mlp
    layers = tuple(
        Layer(
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
    """Cosines and sines [..., head width] for ``positions``, halves repeated as Llama does."""
    frequencies = ROPE_THETA ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = positions.to(torch.float64)[..., None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def hidden(model: Llama, places: Tensor, positions: Tensor, attend: Attend) -> Tensor:
    """Run the layers over ``places`` [B, T] (rows of the embedding) at ``positions`` [B, T]; give the normed last states [B, T, width]."""
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


def save_checkpoint(folder: Path, model: Llama, *, vocab_size: int, end: int, pad: int | None, positions: int) -> None:
    """Write ``model``, whose tables have a row for every id, as transformers' LlamaForCausalLM."""
    tensors = {"model.embed_tokens.weight": model.embed, "model.norm.weight": model.norm, "lm_head.weight": model.head}
    for number, layer in enumerate(model.layers):
        parts = dict(zip(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), layer.qkv.chunk(3), strict=True))
        parts |= dict(zip(("mlp.gate_proj", "mlp.up_proj"), layer.gate_up.chunk(2), strict=True))
        parts |= {"self_attn.o_proj": layer.out, "mlp.down_proj": layer.down}
        parts |= {"input_layernorm": layer.attention_norm, "post_attention_layernorm": layer.mlp_norm}
        tensors |= {_PART.format(number, name): tensor for name, tensor in parts.items()}
    save_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    write_json(
        folder / "config.json", _config(model.shape, vocab_size=vocab_size, end=end, pad=pad, positions=positions)
    )
    write_json(folder / "generation_config.json", {"eos_token_id": end, "pad_token_id": pad, "do_sample": False})


def _config(shape: Shape, *, vocab_size: int, end: int, pad: int | None, positions: int) -> dict[str, Any]:
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
        "max_position_embeddings": positions,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": vocab_size,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": pad,
        "dtype": "float32",
    }


def load_checkpoint(folder: Path) -> Llama:
    """Read a checkpoint that `save_checkpoint` wrote.

    Raises:
        ArtifactError: a file is missing or cut short, or it is no checkpoint of this kind.

    """
    config = read_json(folder / "config.json")
    tensors = load_tensors(folder / "model.safetensors")
    try:
        shape = Shape(
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
            f"{folder}: no checkpoint of the stand-in: {error} is missing; run `dvc repro target`"
        ) from error


def _layer(tensors: dict[str, Tensor], number: int) -> Layer:
    def part(name: str) -> Tensor:
        return tensors[_PART.format(number, name)]

    return Layer(
        part("input_layernorm"),
        torch.cat([part(f"self_attn.{name}_proj") for name in "qkv"]),
        part("self_attn.o_proj"),
        part("post_attention_layernorm"),
        torch.cat([part("mlp.gate_proj"), part("mlp.up_proj")]),
        part("mlp.down_proj"),
    )
