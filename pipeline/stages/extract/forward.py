"""The target's forward pass over packed rows, and the states taken from it.

Rows are laid end to end and only attention separates them, so nothing is padded. A target with other than full causal
attention (sliding windows, capped scores, its own code) runs padded, in batches of nearly equal length.
"""

from contextvars import ContextVar
from itertools import groupby
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from pipeline.core.errors import InputError
from pipeline.model.weights.target import Target, capturing

_LENGTHS: ContextVar[list[int]] = ContextVar("lengths of the packed rows")
_NAME = "aerie_packed"
_PROBE_TOKENS = 64


def _packed_attention(
    _module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: Any,
    scaling: float | None = None,
    **_options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention within each packed row; neighbours of equal length are computed together.

    Args:
        _module: the attention module, which transformers passes.
        query: [1, heads, tokens, head_dim].
        key: [1, kv_heads, tokens, head_dim].
        value: as ``key``.
        _mask: unused: the rows' lengths decide.
        scaling: factor on scores.
        _options: dropout and others, which do not apply to inference with full attention.

    Returns:
        [1, tokens, heads, head_dim], and None for the weights.

    """
    parts, begin = [], 0
    for length, group in groupby(_LENGTHS.get()):
        count = len(list(group))
        end = begin + length * count
        q, k, v = (
            whole[0, :, begin:end].unflatten(1, (count, length)).transpose(0, 1) for whole in (query, key, value)
        )
        attended = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
        )
        parts.append(attended.transpose(1, 2).flatten(0, 1))
        begin = end
    return torch.cat(parts)[None], None


def can_pack(target: Target) -> bool:
    """Return whether attention is plain causal attention that may be replaced.

    Windows, capped scores and code of the model's own forbid it.
    """
    config = target.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    own_code = type(target.model).__module__.startswith("transformers_modules")
    replaceable = bool(getattr(target.model, "_supports_attention_backend", False))
    return (
        replaceable
        and not own_code
        and kinds == {"full_attention"}
        and window is None
        and not getattr(config, "attn_logit_softcapping", None)
    )


def pack_attention(target: Target) -> None:
    """Make the target attend row by row within packed batches."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _packed_attention)
    target.model.set_attn_implementation(_NAME)


def states(
    target: Target, layer_ids: list[int], rows: list[torch.Tensor], *, packed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the hidden states of rows, end to end, on the model's device.

    They are aux [tokens, 3 * hidden] and last [tokens, hidden].
    """
    lengths = [len(row) for row in rows]
    with torch.inference_mode(), capturing(target, layer_ids) as caught:
        if packed:
            run_packed(target, rows)
        else:
            _run_padded(target, rows)
    taken = [caught[number] for number in [*layer_ids, target.num_layers]]
    flat = [
        state[0] if packed else torch.cat([state[number, :length] for number, length in enumerate(lengths)])
        for state in taken
    ]
    if any(len(state) != sum(lengths) for state in flat):
        raise InputError(
            f"{target.source.name}: {sum(lengths)} token ids gave {[len(state) for state in flat]} hidden states: "
            "one for each token is needed"
        )
    device = flat[-1].device
    return torch.cat([state.to(device) for state in flat[:-1]], -1), flat[-1]


def run_packed(target: Target, rows: list[torch.Tensor]) -> None:
    """Run the decoder over rows laid end to end; `pack_attention` must have been called."""
    places = torch.cat([torch.arange(len(row)) for row in rows])[None].to(target.device)
    token = _LENGTHS.set([len(row) for row in rows])
    try:
        target.decoder(input_ids=torch.cat(rows).long()[None].to(target.device), position_ids=places, use_cache=False)
    finally:
        _LENGTHS.reset(token)


def _run_padded(target: Target, rows: list[torch.Tensor]) -> None:
    ids = torch.nn.utils.rnn.pad_sequence([row.long() for row in rows], batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.int64) for row in rows], batch_first=True)
    target.decoder(input_ids=ids.to(target.device), attention_mask=mask.to(target.device), use_cache=False)


def check_teacher(target: Target, layer_ids: list[int], row: torch.Tensor, *, packed: bool) -> None:
    """Check on one row that head(norm(last state)) gives the model's own logits.

    Otherwise training would learn from a wrong teacher.

    Raises:
        InputError: the state was taken on the wrong side of a norm, or the model scales or caps its logits.

    """
    row = row[:_PROBE_TOKENS]
    _, last = states(target, layer_ids, [row], packed=packed)
    token = _LENGTHS.set([len(row)])
    with torch.inference_mode():
        own = target.model(input_ids=row.long()[None].to(target.device), use_cache=False).logits[0].float()
        ours = target.head(target.norm(last.to(target.head.weight.device))).float()
    _LENGTHS.reset(token)
    if broken := int((~torch.isfinite(own)).any(-1).sum()):
        raise InputError(
            f"{target.source.name}: the model's own logits are not finite at {broken} of {len(row)} positions: "
            "set extract.compute_dtype to bfloat16 or float32; if it is already, check the weights"
        )
    agree = (own.argmax(-1) == ours.argmax(-1)).float().mean().item()
    error = ((own - ours).abs().max() / own.abs().max().clamp(min=1e-6)).item()
    if not (agree >= 0.99 and error <= 0.05):
        raise InputError(
            f"{target.source.name}: head(norm(state)) agrees with the model's own choice at {agree:.0%} of {len(row)} "
            f"positions (largest difference {error:.1%} of the largest logit); at least 99 % and at most 5 % are "
            "needed: this architecture scales or caps its logits, or its final norm was not found"
        )
