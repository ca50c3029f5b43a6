"""Check an engine's states: no state is zero, none comes twice, none is of another row.

Every check allows what an honest server can return. Two tokens whose embeddings are equal may have equal states, and a
token whose embedding is zero (a padding token) may have zero states, so the target's embedding decides.
"""

import hashlib

import torch

from pipeline.core.errors import EngineError
from pipeline.stages.extract.plan import InputRow

_BITS = {2: torch.int16, 4: torch.int32}
"""Integer type by bytes of a number."""


class StateChecks:
    """Checks of the rows of one run; remembers a fingerprint of each row's states, to find rows with the same ones."""

    def __init__(self, embedding: torch.Tensor, layer_ids: tuple[int, ...], where: str) -> None:
        """Hold the target's embedding [vocab, hidden] and the layers of the states; ``where`` names the server."""
        self._embedding, self._layer_ids, self._where = embedding, layer_ids, where
        self._rows: dict[bytes, InputRow] = {}

    def check(self, row: InputRow, states: torch.Tensor) -> None:
        """Refuse states [tokens, layers, hidden] that cannot be the row's.

        Raises:
            EngineError: with the row's id, the tokens and layer, and what to do.

        """
        at = f"{self._where}: row {row.id!r}"
        self._check_zeros(row, states, at)
        marks = states.view(_BITS[states.dtype.itemsize]).sum(-1, dtype=torch.int64)
        for layer in range(states.shape[1]):
            self._check_repeats(row, states[:, layer], marks[:, layer], f"layer {self._layer_ids[layer]}", at)
        self._check_other_rows(row, marks, at)

    def _check_zeros(self, row: InputRow, states: torch.Tensor, at: str) -> None:
        zero = ~states.any(-1) & self._embedding[row.token_ids.long()].any(-1)[:, None]
        if not zero.any():
            return
        layer = int(zero.any(0).nonzero()[0])
        tokens = zero[:, layer].nonzero().flatten().tolist()
        cause = (
            "this engine does not capture that layer for this target (docs/extract-servers.md)"
            if len(tokens) == len(zero)
            else "the file was read before all of it was written, or the server computed only a part of the row: let "
            "server and extract share a local folder, check the launch command (docs/extract-servers.md), and run again"
        )
        raise EngineError(
            f"{at}: the state of layer {self._layer_ids[layer]} is zero at {len(tokens)} of {len(zero)} tokens, "
            f"first at token {tokens[0]}: {cause}"
        )

    def _check_repeats(self, row: InputRow, states: torch.Tensor, marks: torch.Tensor, layer: str, at: str) -> None:
        """Refuse two equal states [hidden] among [tokens, hidden].

        ``marks`` int64 [tokens] are equal where states are.
        """
        _, group, counts = marks.unique(return_inverse=True, return_counts=True)
        first: dict[bytes, int] = {}
        for token in (counts[group] > 1).nonzero().flatten().tolist():
            earlier = first.setdefault(states[token].contiguous().view(torch.uint8).numpy().tobytes(), token)
            pair = row.token_ids[[earlier, token]]
            if not self._embeds_alike(pair[:1], pair[1:]):
                raise EngineError(
                    f"{at}: tokens {earlier} and {token} are {pair[0]} and {pair[1]}, and have the same state of "
                    f"{layer}: the server repeats states; update or restart it, and run again"
                )

    def _check_other_rows(self, row: InputRow, marks: torch.Tensor, at: str) -> None:
        """Refuse states that an earlier row of other tokens had: its head may agree, as after every end token."""
        other = self._rows.setdefault(hashlib.sha256(marks.numpy().tobytes()).digest(), row)
        if not self._embeds_alike(other.token_ids, row.token_ids):
            raise EngineError(
                f"{at}: has the states of row {other.id!r}, whose tokens are others: the server mixes up requests; "
                "update or restart it (engine.concurrency: 1 may avoid it), and run again"
            )

    def _embeds_alike(self, some: torch.Tensor, others: torch.Tensor) -> bool:
        """Return whether two sequences of token ids have equal embeddings."""
        if len(some) != len(others):
            return False
        differing = some != others
        return torch.equal(self._embedding[some[differing].long()], self._embedding[others[differing].long()])
