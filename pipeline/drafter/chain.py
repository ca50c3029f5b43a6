"""Chain drafting with a KV cache, for a batch of conversations of different lengths.

The cache keeps slots in the order of computation; a slot that does not count (padding, a rejected draft) stays and is
masked. Committed slots come from the target's states; the slots of a draft in progress are dropped after the target has
verified it.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from pipeline.drafter.drafter import Drafter


class DraftCache:
    """Keys and values [batch, kv_heads, slots, head_dim], and the slots that count, bool [batch, slots]."""

    def __init__(self) -> None:
        self._held: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    @property
    def slots(self) -> int:
        """Number of slots."""
        return 0 if self._held is None else self._held[2].shape[1]

    def append(
        self, keys: torch.Tensor, values: torch.Tensor, valid: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Add slots at the end; return all keys, values and flags."""
        if self._held is None:
            self._held = keys, values, valid
        else:
            self._held = (
                torch.cat([self._held[0], keys], 2),
                torch.cat([self._held[1], values], 2),
                torch.cat([self._held[2], valid], 1),
            )
        return self._held

    def crop(self, slots: int) -> None:
        """Drop all but the first ``slots``."""
        if self._held is not None:
            keys, values, valid = self._held
            self._held = keys[:, :, :slots], values[:, :, :slots], valid[:, :slots]

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Keep only some conversations, int64 [kept]."""
        if self._held is not None:
            keys, values, valid = self._held
            self._held = keys[rows], values[rows], valid[rows]


def visible(valid: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the attention mask [batch, 1, rows, slots] of the last ``rows`` slots.

    A query sees the valid slots up to its own, and itself. A query in a slot that does not count also sees itself, so
    that its softmax is defined; its result is not used.
    """
    slots = valid.shape[1]
    own = torch.arange(slots - rows, slots, device=valid.device)[:, None]
    slot = torch.arange(slots, device=valid.device)[None]
    return ((slot <= own)[None] & valid[:, None] | (slot == own)[None])[:, None]


def extend(
    drafter: Drafter,
    cache: DraftCache,
    hidden: torch.Tensor,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    valid: torch.Tensor,
) -> torch.Tensor:
    """Run the drafter's layer over new slots and add them to the cache.

    Args:
        drafter: the weights.
        cache: grows by ``slots``.
        hidden: [batch, slots, hidden]: fused states of the target, or the drafter's own last output.
        token_ids: int64 [batch, slots]: the token after each slot.
        positions: int64 [batch, slots]: place in the conversation.
        valid: bool [batch, slots].

    Returns:
        The layer's output [batch, slots, hidden].

    """
    layer = drafter.midlayer
    mixed = layer.mix(drafter.embed(token_ids), hidden)
    angles = drafter.angles(positions)
    keys, values, counted = cache.append(*layer.keys_values(mixed, angles), valid)
    mask = visible(counted, token_ids.shape[1])
    grouped = drafter.config.num_heads != drafter.config.num_kv_heads
    attended = scaled_dot_product_attention(
        layer.queries(mixed, angles), keys, values, mask, scale=drafter.scale, enable_gqa=grouped
    )
    return layer.finish(hidden, attended)


def draft_chain(
    drafter: Drafter, cache: DraftCache, hidden: torch.Tensor, positions: torch.Tensor, count: int
) -> torch.Tensor:
    """Draft ``count`` tokens greedily after the newest committed slot: int64 [batch, count]. The cache ends as it was.

    Args:
        drafter: the weights.
        cache: committed slots only.
        hidden: [batch, hidden]: output at each conversation's newest slot.
        positions: int64 [batch]: place of that slot.
        count: tokens to draft.

    """
    committed = cache.slots
    drafts = []
    for step in range(count):
        token = drafter.to_target_ids(drafter.logits(hidden).argmax(-1))
        drafts.append(token)
        if step + 1 < count:
            valid = torch.ones_like(token, dtype=torch.bool)[:, None]
            hidden = extend(drafter, cache, hidden[:, None], token[:, None], (positions + 1 + step)[:, None], valid)[
                :, 0
            ]
    cache.crop(committed)
    return torch.stack(drafts, 1)
