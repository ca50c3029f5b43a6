"""Training examples packed into token rows of one length, and the loss of such a row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.standin.model.live_vocabulary import LiveVocabulary
from pipeline.standin.model.llama import Llama, hidden


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """One dialogue as ids."""

    prompt: list[int]
    answer: list[int]
    """Everything that the model writes, end token included."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """Several examples in one row of L tokens; -1 as a label means no loss there."""

    places: Tensor
    """Rows of the embedding, int64 [1, L]."""
    positions: Tensor
    """Position of each token within its own example, int64 [1, L]."""
    owner: Tensor
    """Number of each token's example, -1 where the row is empty, int64 [L]."""
    labels: Tensor
    """Row of the next id where the model writes it, else -1, int64 [L]."""

    def mask(self) -> Tensor:
        """Return the keys that each query sees, itself and those before it in its own example: bool [1, 1, L, L]."""
        return ((self.owner[:, None] == self.owner[None, :]).tril())[None, None]


def pack(examples: Sequence[TrainingExample], live: LiveVocabulary, length: int) -> Iterator[TrainingRow]:
    """Fill rows of ``length`` tokens with whole examples, in order; a longer example gets a row of its own size."""
    group: list[TrainingExample] = []
    size = 0
    for example in examples:
        cost = len(example.prompt) + len(example.answer) - 1
        if group and size + cost > length:
            yield _pack_row(group, live, max(length, size))
            group, size = [], 0
        group.append(example)
        size += cost
    if group:
        yield _pack_row(group, live, max(length, size))


def _pack_row(group: Sequence[TrainingExample], live: LiveVocabulary, length: int) -> TrainingRow:
    places, labels, positions, owner = (torch.zeros(length, dtype=torch.int64) for _ in range(4))
    labels.fill_(-1)
    owner.fill_(-1)
    start = 0
    for number, example in enumerate(group):
        rows = live.place[torch.tensor(example.prompt + example.answer)]
        stop = start + len(rows) - 1
        places[start:stop], positions[start:stop], owner[start:stop] = rows[:-1], torch.arange(len(rows) - 1), number
        next_rows = rows[1:].clone()
        next_rows[: len(example.prompt) - 1] = -1
        labels[start:stop] = next_rows
        start = stop
    return TrainingRow(places[None], positions[None], owner, labels)


def row_loss(model: Llama, live: LiveVocabulary, row: TrainingRow) -> Tensor:
    """Return the sum of the cross entropies, over the full vocabulary, of the ids that the model writes."""
    mask = row.mask()

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    states = hidden(model, row.places, row.positions, attend)[0]
    written = row.labels >= 0
    return functional.cross_entropy(
        live.add_shared_mass(functional.linear(states[written], model.head)), row.labels[written], reduction="sum"
    )
