"""The live ids of the stand-in, which have a row of their own; all unused ids share one row.

This makes the full softmax cheap. With m unused ids tied to one row w, it has m equal terms exp(w.h). One term
exp(w.h + log m) equals their sum; if it is drawn, one of the m ids is picked uniformly.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.standin.model.llama import Llama


class LiveVocabulary(NamedTuple):
    """The live ids, the unused ids, and the row of each id."""

    ids: Tensor
    """Live ids, ascending, int64 [n]."""
    unused: Tensor
    """All other ids, ascending, int64."""
    place: Tensor
    """Row of each id, int64 [vocabulary]: its own, or n, the shared one."""

    def add_shared_mass(self, logits: Tensor) -> Tensor:
        """Turn the last logit of [..., n + 1], that of each unused id, into the logit of all unused ids together."""
        bias = torch.zeros(logits.shape[-1], dtype=logits.dtype)
        bias[-1] = math.log(len(self.unused))
        return logits + bias


def make_live_vocabulary(ids: set[int], vocab_size: int) -> LiveVocabulary:
    """Return the table for these live ids; at least one id must be left unused."""
    kept = torch.tensor(sorted(ids))
    used = torch.zeros(vocab_size, dtype=torch.bool)
    used[kept] = True
    place = torch.full((vocab_size,), len(kept))
    place[kept] = torch.arange(len(kept))
    return LiveVocabulary(kept, torch.nonzero(~used).flatten(), place)


def expand(model: Llama, live: LiveVocabulary) -> Llama:
    """Return the model with a row for each id of the vocabulary."""
    return model._replace(embed=model.embed.detach()[live.place], head=model.head.detach()[live.place])


def compact(model: Llama) -> tuple[Llama, LiveVocabulary]:
    """Return the compact model of a full checkpoint: the row that most ids repeat is the shared one."""
    column = model.head[:, 0]
    shared = int(torch.nonzero(column == column.median())[0])
    own = (model.head != model.head[shared]).any(dim=1) | (model.embed != model.embed[shared]).any(dim=1)
    live = make_live_vocabulary(set(torch.nonzero(own).flatten().tolist()), len(column))
    rows = torch.cat((live.ids, live.unused[:1]))
    return model._replace(embed=model.embed[rows], head=model.head[rows]), live
