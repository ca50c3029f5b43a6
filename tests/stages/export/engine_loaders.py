"""Loaders of an exported folder, written from how SGLang's and vLLM's loaders and layers work.

Both engines fuse parameters, rename weights and skip unknown names without an error. They keep query, key and value as
one matrix, gate and up as another, take the embedding from the target, and add a residual inside their norms.
"""

from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from pipeline.core.files.json_file import read_json
from pipeline.core.files.tensors import load_tensors


class EngineDrafter:
    """An EAGLE-3 draft model as an engine builds it from config.json, and then fills it."""

    def __init__(self, config: dict[str, Any], llama: dict[str, Any]) -> None:
        self.eps, self.theta = llama["rms_norm_eps"], llama["rope_theta"]
        width, inner, self.head_dim = llama["hidden_size"], llama["intermediate_size"], llama["head_dim"]
        self.heads, self.kv_heads = llama["num_attention_heads"], llama["num_key_value_heads"]
        fused = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.layer = "midlayer" if config["architectures"] == ["LlamaForCausalLMEagle3"] else "layers.0"
        shapes = {
            "fc.weight": (width, 3 * config.get("target_hidden_size", width)),
            "norm.weight": (width,),
            "lm_head.weight": (config["draft_vocab_size"], width),
            **{
                f"{self.layer}.{name}.weight": (width,)
                for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
            },
            f"{self.layer}.self_attn.qkv_proj.weight": (fused, 2 * width),
            f"{self.layer}.self_attn.o_proj.weight": (width, self.heads * self.head_dim),
            f"{self.layer}.mlp.gate_up_proj.weight": (2 * inner, width),
            f"{self.layer}.mlp.down_proj.weight": (width, inner),
        }
        self.parameters = {
            name: torch.full(shape, torch.nan) for name, shape in shapes.items()
        }  # what no tensor fills stays nan
        self.hot_ids: torch.Tensor | None = None
        self.skipped: list[str] = []

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Place every tensor; names that the engine would skip without an error go to ``skipped``."""
        query, key, inner = (
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
            self.parameters[f"{self.layer}.mlp.gate_up_proj.weight"].shape[0] // 2,
        )
        parts = {
            ".q_proj": (".qkv_proj", 0, query),
            ".k_proj": (".qkv_proj", query, key),
            ".v_proj": (".qkv_proj", query + key, key),
            ".gate_proj": (".gate_up_proj", 0, inner),
            ".up_proj": (".gate_up_proj", inner, inner),
        }
        for name, tensor in tensors.items():
            if "d2t" in name:
                self.hot_ids = tensor + torch.arange(len(tensor))
            elif stacked := next((part for part in parts if part in name), None):
                fused, begin, rows = parts[stacked]
                self.parameters[name.replace(stacked, fused)][begin : begin + rows].copy_(tensor)
            elif name in self.parameters:
                assert self.parameters[name].shape == tensor.shape, name
                self.parameters[name].copy_(tensor)
            else:
                self.skipped.append(name)

    def logits(self, aux: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        """Return the logits of the first draft at each position of a conversation.

        Args:
            aux: [tokens, 3 * target].
            embeds: [tokens, hidden] of the next tokens.

        """
        weight = {
            name.removeprefix(f"{self.layer}.").removesuffix(".weight"): tensor
            for name, tensor in self.parameters.items()
        }

        def norm(x: torch.Tensor, name: str) -> torch.Tensor:
            return rms_norm(x, x.shape[-1:], weight[name], self.eps)

        residual = aux @ weight["fc"].T
        mixed = torch.cat([norm(embeds, "input_layernorm"), norm(residual, "hidden_norm")], -1)
        split = (mixed @ weight["self_attn.qkv_proj"].T).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)
        q, k, v = split.split([self.heads, self.kv_heads, self.kv_heads])
        q, k = self._rotated(q), self._rotated(k)
        attended = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
        residual = residual + attended.transpose(0, 1).flatten(1) @ weight["self_attn.o_proj"].T
        gate, up = (norm(residual, "post_attention_layernorm") @ weight["mlp.gate_up_proj"].T).chunk(2, -1)
        return norm(residual + (silu(gate) * up) @ weight["mlp.down_proj"].T, "norm") @ weight["lm_head"].T

    def _rotated(self, heads: torch.Tensor) -> torch.Tensor:
        half = self.head_dim // 2
        turns = torch.arange(heads.shape[1])[:, None] / self.theta ** (torch.arange(half) / half)
        first, second = heads[..., :half], heads[..., half:]
        return torch.cat([first * turns.cos() - second * turns.sin(), second * turns.cos() + first * turns.sin()], -1)


def load_as_sglang(folder: Path) -> EngineDrafter:
    """Load as SGLang does: it reads fields of the top level, and does not read `t2d`."""
    config = read_json(folder / "config.json")
    drafter = EngineDrafter(config, config)
    drafter.load(load_tensors(folder / "model.safetensors"))
    return drafter


def load_as_vllm(folder: Path) -> EngineDrafter:
    """Load as vLLM does.

    It reads speculators' config, whose Llama fields are nested and whose own fields win; it renames `midlayer.` to
    `layers.0.`, and does not read `t2d`.
    """
    config = read_json(folder / "config.json")
    assert not any(config[flag] for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")), (
        "other computations than the one here"
    )
    drafter = EngineDrafter(config, config["transformer_layer_config"])
    drafter.load(
        {
            name.replace("midlayer.", "layers.0."): tensor
            for name, tensor in load_tensors(folder / "model.safetensors").items()
        }
    )
    return drafter
