"""What the stage asks of whatever computes the states: the model in this process, or a serving engine."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import torch

from pipeline.model.weights.target import Target
from pipeline.stages.extract.plan import Row


class States(NamedTuple):
    """States of a batch's rows, end to end."""

    aux: torch.Tensor
    """[tokens, 3 * hidden]: inputs of the auxiliary layers, low to high."""
    last: torch.Tensor
    """[tokens, hidden]: the last layer's output, before the final norm."""


class Backend(Protocol):
    """Computes states. Making one is cheap; `start` loads what it needs."""

    engine: str
    """Name and version of what computes: states of different engines never mix in one artifact."""
    padded: bool
    """Whether a batch's rows should be of nearly one length; known after `start`."""

    by_row: bool
    """Whether a row's states depend on nothing but the row, so that each may be kept by itself; else they depend, in the last bit, on its batch."""

    def start(self, probe: Row | None) -> Target:
        """Get ready, check on ``probe`` that head(norm(last state)) is what the model itself says, and give the target's shape and names."""

    def states(self, batches: Iterable[list[Row]]) -> Iterator[States]:
        """States of each batch, in order. What a row gets does not depend on the batches before or after its own."""
