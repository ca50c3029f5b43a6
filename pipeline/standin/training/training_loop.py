"""The training loop of the stand-in; bit-deterministic on one machine."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from pipeline.standin.model.live_vocabulary import LiveVocabulary
from pipeline.standin.model.llama import Llama, LlamaShape, initial
from pipeline.standin.training.config import TinySection
from pipeline.standin.training.packed_rows import TrainingExample, TrainingRow, pack, row_loss

THREADS = 2
"""Rows of a step, each on a core of its own.

The number is fixed, so that sums have one order. The library's own threads are not used: they wait for each other in
busy loops, and were ten times slower on cores that other processes use as well.
"""


def train_stand_in(
    tiny: TinySection, examples: Sequence[TrainingExample], live: LiveVocabulary
) -> tuple[Llama, list[float]]:
    """Train a compact stand-in on ``examples``, once and in their order; return it and the mean loss of each step."""
    shape = LlamaShape(tiny.layers, tiny.width, tiny.mlp, tiny.heads)
    model = initial(shape, len(live.ids) + 1, tiny.init_std, torch.Generator().manual_seed(tiny.seed))
    for tensor in model.tensors():
        tensor.requires_grad_()
    matrices = [tensor for tensor in model.tensors() if tensor.dim() > 1]
    norms = [tensor for tensor in model.tensors() if tensor.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=tiny.lr, betas=(0.9, 0.95), fused=True)
    rows = list(pack(examples, live, tiny.tokens_per_batch // THREADS))
    steps = [rows[start : start + THREADS] for start in range(0, len(rows), THREADS)]
    losses = []
    with ThreadPoolExecutor(THREADS) as pool:
        for number, step in enumerate(steps):
            for group in optimizer.param_groups:
                group["lr"] = tiny.lr * learning_rate_share(number, len(steps))
            row_results = list(pool.map(lambda row: _loss_and_gradients(model, live, row), step))
            written = sum(int((row.labels >= 0).sum()) for row in step)
            row_gradients = (gradients for _, gradients in row_results)
            for tensor, *gradients in zip(model.tensors(), *row_gradients, strict=True):
                tensor.grad = torch.stack(gradients).sum(dim=0) / written
            torch.nn.utils.clip_grad_norm_(model.tensors(), 1.0)
            optimizer.step()
            losses.append(sum(loss for loss, _ in row_results) / written)
    return model.to(torch.float32), losses


def learning_rate_share(step: int, steps: int) -> float:
    """Return the share of the learning rate at a step: a short linear warm-up, then a cosine down to a hundredth."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def _loss_and_gradients(model: Llama, live: LiveVocabulary, row: TrainingRow) -> tuple[float, tuple[Tensor, ...]]:
    torch.set_num_threads(1)
    loss = row_loss(model, live, row)
    return loss.item(), torch.autograd.grad(loss, model.tensors())
