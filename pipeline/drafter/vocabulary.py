"""The draft vocabulary: the tokens that a drafter can propose.

Draft id i is token i + d2t[i], and t2d marks the tokens.
"""

import torch

from pipeline.core.errors import ArtifactError, ConfigError


def choose_vocabulary(counts: torch.Tensor, size: int) -> torch.Tensor:
    """Return the ids, ascending, of the ``size`` most frequent supervised tokens.

    Ties go to the lower id, and unused ids fill up.

    Args:
        counts: int64 [vocab]: how often each token is supervised in the training rows.
        size: rows of the drafter's head.

    Raises:
        ConfigError: there are fewer tokens than draft ids.

    """
    if size > len(counts):
        raise ConfigError(
            f"train.draft_vocab_size is {size}; the target's vocabulary has {len(counts)} tokens: lower it"
        )
    ranked = torch.sort(counts, descending=True, stable=True).indices
    return torch.sort(ranked[:size]).values


def vocabulary_of(d2t: torch.Tensor, t2d: torch.Tensor, where: str) -> torch.Tensor:
    """Check the two halves of a stored map against each other, and return its token ids.

    Raises:
        ArtifactError: they do not fit: absolute ids instead of offsets, a map of other data, ids outside the
            vocabulary.

    """
    used = d2t + torch.arange(len(d2t))
    marked = t2d.nonzero().flatten()
    if not torch.equal(used, marked):
        differing = int((used != marked).sum()) if len(used) == len(marked) else abs(len(used) - len(marked))
        raise ArtifactError(
            f"{where}: d2t names {len(used)} tokens ({used[:4].tolist()}, ...), t2d marks {len(marked)} "
            f"({marked[:4].tolist()}, ...), {differing} differ: d2t must hold offsets (token - draft id) of the same "
            "map "
            "as t2d; the checkpoint is damaged or mixes two data sets"
        )
    return used
