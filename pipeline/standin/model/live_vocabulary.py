"""The live ids of the stand-in: those with a row of their own. All others share one row, which makes the full softmax cheap.

With n unused ids tied to one row w, the full softmax has n equal terms exp(w.h). One term exp(w.h + log n) stands for all
of them exactly; when it is drawn, one of the n is picked uniformly.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.standin.model.llama import Llama


class Live(NamedTuple):
    """Which ids are live, and where each id's row is."""

    ids: Tensor
    """Live ids, ascending, int64 [n]."""
    unused: Tensor
    """All other ids, ascending, int64."""
    place: Tensor
    """Row of each id, int64 [vocabulary]: its own, or n, the shared one."""

    def counted(self, logits: Tensor) -> Tensor:
        """Logits [..., n + 1] of which the last stands for all unused ids together, from those of which it stands for one of them."""
        bias = torch.zeros(logits.shape[-1], dtype=logits.dtype)
        bias[-1] = math.log(len(self.unused))
        return logits + bias


def live_of(ids: set[int], vocab_size: int) -> Live:
    """Give the table for these live ids; at least one id must be left unused."""
    kept = torch.tensor(sorted(ids))
    used = torch.zeros(vocab_size, dtype=torch.bool)
    used[kept] = True
    place = torch.full((vocab_size,), len(kept))
    place[kept] = torch.arange(len(kept))
    return Live(kept, torch.nonzero(~used).flatten(), place)


def expand(model: Llama, live: Live) -> Llama:
    """Give each id of the vocabulary its row."""
    return model._replace(embed=model.embed.detach()[live.place], head=model.head.detach()[live.place])


def compact(model: Llama) -> tuple[Llama, Live]:
    """Find the shared row again in a full checkpoint (the row that most ids repeat), and give the compact model."""
    column = model.head[:, 0]
    shared = int(torch.nonzero(column == column.median())[0])
    own = (model.head != model.head[shared]).any(dim=1) | (model.embed != model.embed[shared]).any(dim=1)
    live = live_of(set(torch.nonzero(own).flatten().tolist()), len(column))
    rows = torch.cat((live.ids, live.unused[:1]))
    return model._replace(embed=model.embed[rows], head=model.head[rows]), live
