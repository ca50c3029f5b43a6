"""Training of the stand-in: the corpus as packed token rows, and the loop. Bit-deterministic on one machine."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.standin.model.live_vocabulary import Live
from pipeline.standin.model.llama import Llama, Shape, hidden, initial
from pipeline.standin.training.config import TinySection

THREADS = 2
"""Rows of a step, each on a core of its own. Fixed, so that sums have one order; and not left to the library's threads, which wait
for each other in busy loops: on cores that others use as well they were ten times slower."""


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation as ids."""

    prompt: list[int]
    answer: list[int]
    """Everything that the model writes, end token included."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Several examples in one row of fixed length; -1 as a label means no loss there."""

    places: Tensor
    """Rows of the embedding, [1, L]."""
    positions: Tensor
    """Position within its own example, [1, L]."""
    owner: Tensor
    """Number of the example, -1 where the row is empty, [L]."""
    labels: Tensor
    """Row of the next id where the model writes it, else -1, [L]."""

    def mask(self) -> Tensor:
        """Which keys each query sees: itself and those before it in its own example, bool [1, 1, L, L]."""
        return ((self.owner[:, None] == self.owner[None, :]).tril())[None, None]


def pack(examples: Sequence[Example], live: Live, length: int) -> Iterator[Pack]:
    """Fill rows of ``length`` tokens with whole examples, in order; an example longer than that has a row of its own size."""
    group: list[Example] = []
    size = 0
    for example in examples:
        cost = len(example.prompt) + len(example.answer) - 1
        if group and size + cost > length:
            yield _row(group, live, max(length, size))
            group, size = [], 0
        group.append(example)
        size += cost
    if group:
        yield _row(group, live, max(length, size))


def _row(group: Sequence[Example], live: Live, length: int) -> Pack:
    places, labels, positions, owner = (torch.zeros(length, dtype=torch.int64) for _ in range(4))
    labels.fill_(-1)
    owner.fill_(-1)
    start = 0
    for number, example in enumerate(group):
        rows = live.place[torch.tensor(example.prompt + example.answer)]
        stop = start + len(rows) - 1
        places[start:stop], positions[start:stop], owner[start:stop] = rows[:-1], torch.arange(len(rows) - 1), number
        wanted = rows[1:].clone()
        wanted[: len(example.prompt) - 1] = -1
        labels[start:stop] = wanted
        start = stop
    return Pack(places[None], positions[None], owner, labels)


def loss_of(model: Llama, live: Live, row: Pack) -> Tensor:
    """Sum of the cross entropies, over the full vocabulary, of the ids that the model writes."""
    mask = row.mask()

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    states = hidden(model, row.places, row.positions, attend)[0]
    written = row.labels >= 0
    return functional.cross_entropy(
        live.counted(functional.linear(states[written], model.head)), row.labels[written], reduction="sum"
    )


def _gradients(model: Llama, live: Live, row: Pack) -> tuple[float, tuple[Tensor, ...]]:
    torch.set_num_threads(1)
    loss = loss_of(model, live, row)
    return loss.item(), torch.autograd.grad(loss, model.tensors())


def rate(step: int, steps: int) -> float:
    """Share of the learning rate at a step: a short warm-up, then a cosine to a hundredth."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def learn(tiny: TinySection, examples: Sequence[Example], live: Live) -> tuple[Llama, list[float]]:
    """Train a compact stand-in on ``tiny.tokens`` tokens of ``examples``, in their order; give it and each step's mean loss."""
    shape = Shape(tiny.layers, tiny.width, tiny.mlp, tiny.heads)
    model = initial(shape, len(live.ids) + 1, tiny.init_std, torch.Generator().manual_seed(tiny.seed))
    for tensor in model.tensors():
        tensor.requires_grad_()
    decayed = [tensor for tensor in model.tensors() if tensor.dim() > 1]
    kept = [tensor for tensor in model.tensors() if tensor.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=tiny.lr, betas=(0.9, 0.95), fused=True)
    rows = list(pack(examples, live, tiny.tokens_per_batch // THREADS))
    steps = [rows[start : start + THREADS] for start in range(0, len(rows), THREADS)]
    losses = []
    with ThreadPoolExecutor(THREADS) as pool:
        for number, step in enumerate(steps):
            for group in optimizer.param_groups:
                group["lr"] = tiny.lr * rate(number, len(steps))
            parts = list(pool.map(lambda row: _gradients(model, live, row), step))
            written = sum(int((row.labels >= 0).sum()) for row in step)
            for tensor, *gradients in zip(model.tensors(), *(of_row for _, of_row in parts), strict=True):
                tensor.grad = torch.stack(gradients).sum(dim=0) / written
            torch.nn.utils.clip_grad_norm_(model.tensors(), 1.0)
            optimizer.step()
            losses.append(sum(loss for loss, _ in parts) / written)
    return model.to(torch.float32), losses
