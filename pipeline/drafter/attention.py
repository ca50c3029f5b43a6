"""Attention of one step of the training-time test: a causal block, a diagonal for each later step.

Step j's query at row t sees the step-0 keys of its own document up to t, and of steps 1..j only its own row's key. A
dense mask for that is [L, (j+1) L]; this form costs L^2/2 + j L for a step. Each part has its own softmax, and the
log-denominators give the share of each in the whole. Only they are kept for the backward pass, which computes the
probabilities again block by block (as in FlashAttention, arXiv 2205.14135), so memory grows with L and not with L^2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

SMALLEST, LARGEST = 64, 256
"""Limits of the query rows of a block. It has about the length of a conversation: a larger block would multiply short
ones with neighbours."""


@dataclass(frozen=True, slots=True)
class Block:
    """Query rows [start, stop) and the keys [low, high) that any of them may see."""

    start: int
    stop: int
    low: int
    high: int
    hidden: torch.Tensor
    """Bool [stop - start, high - low - edge]: keys that a query must not see, from column ``edge`` on; all queries see
    the columns before."""
    edge: int


def block_size(lengths: Sequence[int]) -> int:
    """Return the rows of a block for conversations of these lengths."""
    mean = sum(lengths) // max(1, len(lengths))
    return max(SMALLEST, min(LARGEST, mean))


def plan_blocks(first: torch.Tensor, last: torch.Tensor, size: int = LARGEST) -> list[Block]:
    """Cut queries into blocks. Query n may see keys [first[n], last[n]].

    Both are int64 [queries] on the CPU, and not decreasing.
    """
    blocks = []
    for start in range(0, len(first), size):
        stop = min(start + size, len(first))
        low, high = int(first[start]), int(last[stop - 1]) + 1
        edge = min(int(last[start]) + 1, high) if int(first[stop - 1]) == low else low
        keys = torch.arange(edge, high)
        hidden = (keys < first[start:stop, None]) | (keys > last[start:stop, None])
        blocks.append(Block(start, stop, low, high, hidden, edge - low))
    return blocks


def to_device(blocks: list[Block], device: torch.device) -> list[Block]:
    """Move the masks of blocks to ``device``."""
    return [replace(b, hidden=b.hidden.to(device)) for b in blocks]


def _grouped(rows: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Reshape [heads, rows, dim] to [kv_heads, group * rows, dim]: queries that share a key head are together."""
    return rows.reshape(kv_heads, -1, rows.shape[-1])


def _scores(q: torch.Tensor, k0: torch.Tensor, block: Block) -> torch.Tensor:
    """Return float32 scores [heads, block rows, block keys] of scaled queries and step-0 keys.

    Hidden keys score minus infinity.
    """
    rows = q[:, block.start : block.stop]
    scores = _grouped(rows, k0.shape[0]) @ k0[:, block.low : block.high].transpose(1, 2)
    scores = scores.float().view(*rows.shape[:2], -1)
    scores[..., block.edge :].masked_fill_(block.hidden, -torch.inf)
    return scores


def _spread(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Repeat [kv_heads, rows, dim] to [heads, rows, dim]: each key head for the queries that share it."""
    return rows.repeat_interleave(heads // rows.shape[0], 0) if rows.shape[0] != heads else rows


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    """Compute the softmax in place.

    Torch does it in one pass over memory; an exponential and a sum take several.
    """
    return torch.softmax(scores, -1, out=scores)


class _CausalDiagonal(torch.autograd.Function):
    """The attention with its gradient; queries are scaled already."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k0: torch.Tensor, v0: torch.Tensor, blocks: list[Block], *diagonals: torch.Tensor
    ) -> torch.Tensor:
        heads = q.shape[0]
        keys, values = ([_spread(rows, heads) for rows in diagonals[part::2]] for part in (0, 1))
        own = torch.stack([(q * key).sum(-1) for key in keys], -1).float() if keys else None
        out, top, lse = torch.empty_like(q), *q.new_empty(2, *q.shape[:2], dtype=torch.float32)
        for block in blocks:
            at = slice(block.start, block.stop)
            scores = _scores(q, k0, block)
            top[:, at] = scores.amax(-1)
            weights = _softmax(scores)
            # relative to the highest score: the sum of both would lose digits for large scores
            lse[:, at] = -weights.amax(-1).log()
            out[:, at] = (_grouped(weights.to(v0.dtype), v0.shape[0]) @ v0[:, block.low : block.high]).reshape(
                heads, -1, q.shape[-1]
            )
        share = None
        if own is not None:
            highest = torch.maximum(top, own.amax(-1))
            own, causal = own - highest[..., None], lse + (top - highest)
            top, lse = highest, torch.logaddexp(causal, own.logsumexp(-1))
            share = (causal - lse).exp()
            out.mul_(share[..., None].to(out.dtype))
            for value, weight in zip(values, (own - lse[..., None]).exp().to(v0.dtype).unbind(-1), strict=True):
                out.addcmul_(weight[..., None], value)
        lse = lse + top
        ctx.save_for_backward(q, k0, v0, out, lse, share, *diagonals)
        ctx.blocks = blocks
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        q, k0, v0, out, lse, share, *diagonals = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k0), torch.zeros_like(v0)
        inner = (grad * out).sum(-1, dtype=torch.float32)
        shared = grad if share is None else grad * share[..., None].to(grad.dtype)
        means = inner if share is None else inner * share
        for block in ctx.blocks:
            at, seen = slice(block.start, block.stop), slice(block.low, block.high)
            weights = _softmax(_scores(q, k0, block))
            rows = _grouped(shared[:, at], k0.shape[0])
            slopes = (rows @ v0[:, seen].transpose(1, 2)).float().view_as(weights)
            slopes = _grouped(slopes.sub_(means[:, at, None]).mul_(weights).to(q.dtype), k0.shape[0])
            dv[:, seen].baddbmm_(_grouped(weights.to(q.dtype), v0.shape[0]).transpose(1, 2), rows)
            dk[:, seen].baddbmm_(slopes.transpose(1, 2), _grouped(q[:, at], k0.shape[0]))
            dq[:, at] = (slopes @ k0[:, seen]).view(q.shape[0], -1, q.shape[-1])
        own = []
        for key, value in zip(diagonals[::2], diagonals[1::2], strict=True):
            own += _CausalDiagonal._diagonal(q, key, value, grad, lse, inner, dq)
        return (dq, dk, dv, None, *own)

    @staticmethod
    def _diagonal(
        q: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        grad: torch.Tensor,
        lse: torch.Tensor,
        inner: torch.Tensor,
        dq: torch.Tensor,
    ) -> list[torch.Tensor]:
        """Return the gradients of one step's own key and value, and add the query's to ``dq``."""
        wide_key, wide_value = _spread(key, len(q)), _spread(value, len(q))
        weights = ((q * wide_key).sum(-1).float() - lse).exp()
        slopes = (weights * ((grad * wide_value).sum(-1).float() - inner))[..., None].to(q.dtype)
        dq.addcmul_(slopes, wide_key)
        shared = (len(key), -1, *key.shape[1:])
        return [(slopes * q).reshape(shared).sum(1), (weights[..., None].to(grad.dtype) * grad).reshape(shared).sum(1)]


def causal_diagonal(
    q: torch.Tensor,
    k0: torch.Tensor,
    v0: torch.Tensor,
    diagonals: list[tuple[torch.Tensor, torch.Tensor]],
    blocks: list[Block],
    scale: float,
) -> torch.Tensor:
    """Attend to the step-0 keys, and to each query's own keys of later steps.

    Args:
        q: [heads, queries, dim].
        k0: step-0 keys [kv_heads, keys, dim].
        v0: step-0 values, as ``k0``.
        diagonals: for each later step the own (key, value) of each query, [kv_heads, queries, dim].
        blocks: the keys that queries may see.
        scale: factor on the scores.

    Returns:
        [heads, queries, dim].

    """
    flat = [part for pair in diagonals for part in pair]
    attended: torch.Tensor = _CausalDiagonal.apply(q * scale, k0, v0, blocks, *flat)  # type: ignore[no-untyped-call]
    return attended
