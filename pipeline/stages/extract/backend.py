"""The interface of what computes the states: the model in this process, or a serving engine."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import torch

from pipeline.model.weights.target import Target
from pipeline.stages.extract.plan import InputRow


class States(NamedTuple):
    """States of a batch's rows, end to end."""

    aux: torch.Tensor
    """[tokens, 3 * hidden]: inputs of the auxiliary layers, low to high."""
    last: torch.Tensor
    """[tokens, hidden]: the last layer's output, before the final norm."""


class Backend(Protocol):
    """Computes states. Its constructor is cheap; `start` loads what it needs."""

    engine: str
    """Name and version of what computes: states of different engines never mix in one artifact."""
    confirms_layers: bool
    """True if it is certain which layers the states are of; only such states are kept for later builds."""
    padded: bool
    """True if a batch's rows should be of nearly one length; known after `start`."""
    by_row: bool
    """True if a row's states depend on the row alone, so that each may be kept by itself; else their last bits depend
    on its batch."""

    def start(self, probe: InputRow | None) -> Target:
        """Get ready, and return the target's shape and names.

        Check on ``probe`` that head(norm(last state)) gives the model's own choice.
        """

    def states(self, batches: Iterable[list[InputRow]]) -> Iterator[States]:
        """Yield the states of each batch, in order.

        A row's states do not depend on the batches before or after its own.
        """
