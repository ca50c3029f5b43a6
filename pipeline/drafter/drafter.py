"""The drafter: one Llama decoder layer over [embedding of the next token; hidden state], as SafeAILab, SpecForge and SGLang compute it.

Parameter names are theirs (`midlayer.*`). Position t reads the target's fused states at t and the embedding of token t+1, and
predicts token t+2. From the second step on, the hidden state is the drafter's own output of the step before, before `norm`.
norm_before_residual, norm_output and norm_before_fc are all false: the only form that every engine loads.
"""

import math
from typing import Any

import torch
from torch import nn

from pipeline.drafter.config import DrafterConfig


def llama_config(config: DrafterConfig) -> Any:
    """Transformers config of the drafter's one layer."""
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
    """The four projections; what is attended to is the caller's business: training and drafting differ in it."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def joint(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights of query, key and value as one, [queries + 2 keys, hidden] each: those that read the embedding, and those that read the hidden state."""
        rows = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        half = rows.shape[1] // 2
        return rows[:, :half], rows[:, half:]

    def heads(self, projection: nn.Linear, mixed: torch.Tensor) -> torch.Tensor:
        """[batch, rows, 2 * hidden] to [batch, heads, rows, head_dim]."""
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
        """Rotated queries [batch, heads, rows, head_dim]."""
        return rotate(self.self_attn.heads(self.self_attn.q_proj, mixed), angles)

    def keys_values(
        self, mixed: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated keys, and values, [batch, kv_heads, rows, head_dim] each."""
        attention = self.self_attn
        return rotate(attention.heads(attention.k_proj, mixed), angles), attention.heads(attention.v_proj, mixed)

    def finish(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """From attention's result [batch, heads, rows, head_dim] to the layer's output; ``residual`` is the hidden state as it came in."""
        hidden = residual + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        out: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


def rotate(heads: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary embedding of [batch, heads, rows, head_dim] by cos and sin [batch, rows, head_dim]."""
    cos, sin = (part[:, None] for part in angles)
    half = heads.shape[-1] // 2
    turned = torch.cat([-heads[..., half:], heads[..., :half]], -1)
    return (heads * cos + turned * sin).to(heads.dtype)  # under autocast heads are narrow and the angles are not


class Drafter(nn.Module):
    """Weights of a drafter. The embedding is the target's, shared and never trained or saved.

    Buffers: `used` int64 [draft_vocab], the token of each draft id; saved are `d2t` int64 [draft_vocab], offsets: draft id i is token i + d2t[i]; `t2d` bool [vocab]: may the drafter say this token.
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
        """Attention's factor on scores."""
        return 1 / math.sqrt(self.config.head_dim)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows of the target's embedding, in the drafter's own dtype."""
        return nn.functional.embedding(token_ids, self.embedding).to(self.fc.weight.dtype)

    def fuse(self, aux: torch.Tensor) -> torch.Tensor:
        """[..., 3 * hidden] states of the target to [..., hidden]."""
        fused: torch.Tensor = self.fc(aux.to(self.fc.weight.dtype))
        return fused

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and sin [batch, rows, head_dim] for positions [batch, rows]."""
        cos, sin = self.rotary(self.fc.weight, positions)
        return cos, sin

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Over the draft vocabulary, from the layer's output."""
        scored: torch.Tensor = self.lm_head(self.norm(hidden))
        return scored

    def to_target_ids(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Draft ids to the target's token ids."""
        return draft_ids + self.d2t[draft_ids]


def initialize(drafter: Drafter, head_rows: torch.Tensor, seed: int) -> None:
    """Set first weights: uniform in 1/sqrt(inputs), norms one, the head a copy of the target's rows [draft_vocab, hidden]."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in drafter.modules():
            if isinstance(module, nn.Linear):
                bound = 1 / math.sqrt(module.in_features)
                module.weight.uniform_(-bound, bound, generator=generator)
        drafter.lm_head.weight.copy_(head_rows)
