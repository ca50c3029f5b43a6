"""The target's likeliest token over its whole vocabulary.

A row of the head that many ids share is scored once. Unused ids often have equal rows (in the build's stand-in all but
some hundreds of 163,840). Equal rows have equal scores, and argmax takes the lowest id, so scoring only the first of
them changes the cost and not the result.
"""

import torch

from pipeline.drafter.losses import full_argmax

_LEAST_SHARE = 8
"""Look for a shared row only if at least one in this many ids may have it."""


class TargetArgmax:
    """The argmax of a head [vocab, hidden]."""

    def __init__(self, head: torch.Tensor) -> None:
        self.ids = _distinct(head)
        self._rows = head if self.ids is None else head[self.ids]

    def of(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the likeliest token after each normed state [rows, hidden]: int64 [rows]."""
        best = full_argmax(hidden.to(self._rows.device), self._rows)
        return best if self.ids is None else self.ids[best]


def _distinct(head: torch.Tensor) -> torch.Tensor | None:
    """Return the ids, ascending, without the later ones of the most common row; None if no row is common."""
    values, counts = head[:, 0].unique(return_counts=True)
    if int(counts.max()) * _LEAST_SHARE < len(head):
        return None
    candidates = (head[:, 0] == values[counts.argmax()]).nonzero().flatten()
    same = candidates[(head[candidates] == head[candidates[len(candidates) // 2]]).all(1)]
    keep = torch.ones(len(head), dtype=torch.bool, device=head.device)
    keep[same[1:]] = False
    return keep.nonzero().flatten()
