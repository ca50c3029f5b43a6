"""The drafter: one Llama decoder layer over [embedding of the next token; hidden state].

It computes as the drafters of SafeAILab, SpecForge and SGLang do, and has their parameter names (`midlayer.*`).
Position t reads the target's fused states at t and the embedding of token t+1, and predicts token t+2. From the second
step on, the hidden state is the drafter's output of the step before, before `norm`. norm_before_residual, norm_output
and norm_before_fc are all false: the only form that every engine loads.
"""

import math
from typing import Any

import torch
from torch import nn

from pipeline.drafter.config import DrafterConfig


def llama_config(config: DrafterConfig) -> Any:
    """Return the transformers config of the drafter's layer."""
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters=dict(config.rope_parameters),
        max_position_embeddings=config.max_position_embeddings,
        hidden_act=config.hidden_act,
        tie_word_embeddings=False,
    )


class Attention(nn.Module):
    """The four projections. Callers compute the attention, since training and drafting attend to different keys."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def joint(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the query, key and value weights as one, [queries + 2 * keys, hidden] each.

        The first part reads the embedding, the second the hidden state.
        """
        rows = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        half = rows.shape[1] // 2
        return rows[:, :half], rows[:, half:]

    def heads(self, projection: nn.Linear, mixed: torch.Tensor) -> torch.Tensor:
        """Project [batch, rows, 2 * hidden] to [batch, heads, rows, head_dim]."""
        split: torch.Tensor = projection(mixed).unflatten(-1, (-1, self.head_dim))
        return split.transpose(1, 2)


class Layer(nn.Module):
    """The decoder layer. Shapes: [batch, rows, ...]."""

    def __init__(self, config: DrafterConfig) -> None:
        from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(llama_config(config))

    def mix(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Normalize and concatenate, embedding first: [batch, rows, 2 * hidden]."""
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)

    def queries(self, mixed: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the rotated queries [batch, heads, rows, head_dim]."""
        return rotate(self.self_attn.heads(self.self_attn.q_proj, mixed), angles)

    def keys_values(
        self, mixed: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rotated keys, and the values, [batch, kv_heads, rows, head_dim] each."""
        attention = self.self_attn
        return rotate(attention.heads(attention.k_proj, mixed), angles), attention.heads(attention.v_proj, mixed)

    def finish(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Return the layer's output from the attention's [batch, heads, rows, head_dim].

        ``residual`` is the layer's hidden input.
        """
        hidden = residual + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        out: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


def rotate(heads: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Apply the rotary embedding to [batch, heads, rows, head_dim], with cos and sin [batch, rows, head_dim]."""
    cos, sin = (part[:, None] for part in angles)
    half = heads.shape[-1] // 2
    turned = torch.cat([-heads[..., half:], heads[..., :half]], -1)
    return (heads * cos + turned * sin).to(heads.dtype)  # under autocast the heads are narrower than the angles


class Drafter(nn.Module):
    """Weights of a drafter. The embedding is the target's; it is not trained or saved.

    Buffers: `used` int64 [draft_vocab] has the token of each draft id, and is not saved. `d2t` int64 [draft_vocab] has
    offsets: draft id i is token i + d2t[i]. `t2d` bool [vocab] marks the tokens of the draft vocabulary.
    """

    d2t: torch.Tensor
    t2d: torch.Tensor
    embedding: torch.Tensor
    used: torch.Tensor

    def __init__(self, config: DrafterConfig, embedding: torch.Tensor, used: torch.Tensor) -> None:
        from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

        super().__init__()
        self.config = config
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(llama_config(config))
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("used", used, persistent=False)
        self.register_buffer("d2t", used - torch.arange(len(used)))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, used, value=True))

    @property
    def scale(self) -> float:
        """Factor on the attention's scores."""
        return 1 / math.sqrt(self.config.head_dim)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return rows of the target's embedding, in the drafter's dtype."""
        return nn.functional.embedding(token_ids, self.embedding).to(self.fc.weight.dtype)

    def fuse(self, aux: torch.Tensor) -> torch.Tensor:
        """Project the target's states [..., 3 * hidden] to [..., hidden]."""
        fused: torch.Tensor = self.fc(aux.to(self.fc.weight.dtype))
        return fused

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin [batch, rows, head_dim] for positions [batch, rows]."""
        cos, sin = self.rotary(self.fc.weight, positions)
        return cos, sin

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [..., draft_vocab] from the layer's output [..., hidden]."""
        scored: torch.Tensor = self.lm_head(self.norm(hidden))
        return scored

    def to_target_ids(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Return the target's token ids of draft ids."""
        return draft_ids + self.d2t[draft_ids]


def initialize(drafter: Drafter, head_rows: torch.Tensor, seed: int) -> None:
    """Set the first weights.

    They are uniform within 1/sqrt(inputs), the norms one, and the head a copy of the target's rows [draft_vocab,
    hidden].
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in drafter.modules():
            if isinstance(module, nn.Linear):
                bound = 1 / math.sqrt(module.in_features)
                module.weight.uniform_(-bound, bound, generator=generator)
        drafter.lm_head.weight.copy_(head_rows)
