"""The target's likeliest token over its whole vocabulary, with a row that many ids share scored once.

Vocabularies hold unused ids whose rows of the head are equal (in the build's stand-in all but some hundreds of 163,840): equal rows have
equal scores, and argmax takes the lowest id, so leaving out all but the first of them changes nothing but the cost.
"""

import torch

from pipeline.drafter.losses import full_argmax

_WORTH = 8
"""Look for a shared row only where at least one id in so many has it."""


class TargetArgmax:
    """A head [vocab, hidden], ready to choose tokens."""

    def __init__(self, head: torch.Tensor) -> None:
        self.ids = _distinct(head)
        self._rows = head if self.ids is None else head[self.ids]

    def of(self, hidden: torch.Tensor) -> torch.Tensor:
        """Likeliest token id after each normed state [rows, hidden]: int64 [rows]."""
        best = full_argmax(hidden.to(self._rows.device), self._rows)
        return best if self.ids is None else self.ids[best]


def _distinct(head: torch.Tensor) -> torch.Tensor | None:
    """Ids, ascending, without the later ones of the most common row; None when no row is common."""
    values, counts = head[:, 0].unique(return_counts=True)
    if int(counts.max()) * _WORTH < len(head):
        return None
    candidates = (head[:, 0] == values[counts.argmax()]).nonzero().flatten()
    same = candidates[(head[candidates] == head[candidates[len(candidates) // 2]]).all(1)]
    keep = torch.ones(len(head), dtype=torch.bool, device=head.device)
    keep[same[1:]] = False
    return keep.nonzero().flatten()
