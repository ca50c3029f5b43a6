"""The training loop: packs to steps, steps to weights; everything that a resumed run needs is in one `State`."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from pipeline.eagle3.drafter import Drafter
from pipeline.eagle3.losses import Teacher
from pipeline.eagle3.objective import PackLoss, pack_loss
from pipeline.eagle3.unroll import Pack, Plan, plan_to, plan_unroll
from pipeline.models import Ends
from pipeline.train.config import TrainSection
from pipeline.train.data import Corpus, RowRef, packs_of_epoch
from pipeline.train.processes import Processes

Item = TypeVar("Item")


def learning_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """Rate of a step (from 0): linear up over the first ``warmup`` share, then a cosine down to zero."""
    rising = max(1, round(steps * warmup))
    if step < rising:
        return peak * (step + 1) / rising
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def schedule(corpus: Corpus, settings: TrainSection) -> list[list[list[list[RowRef]]]]:
    """Epochs, of optimizer steps, of packs, of rows."""
    epochs = []
    for epoch in range(settings.epochs):
        packs = packs_of_epoch(corpus.training, settings.tokens_per_batch, settings.seed, epoch)
        epochs.append([packs[start : start + settings.accumulate] for start in range(0, len(packs), settings.accumulate)])
    return epochs


@dataclass(slots=True)
class StepResult:
    """What one optimizer step did."""

    loss: float
    grad_norm: float
    accuracy: list[float]
    """Share of supervised positions, by step of the unroll, where drafter and teacher agree on the likeliest draft token."""


class Learner:
    """A drafter, its teacher and its optimizer."""

    def __init__(self, drafter: Drafter, ends: Ends, settings: TrainSection) -> None:
        self.drafter, self.ends, self.settings = drafter, ends, settings
        self.head_rows = ends.head[drafter.used]
        self.full_head = None if settings.loss == "kl" else ends.head
        self.optimizer = torch.optim.AdamW(drafter.parameters(), lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, foreach=False)

    def teacher(self, pack: Pack, plan: Plan) -> Teacher:
        """The target's distributions where the pack is supervised."""
        last = pack.last.to(self.head_rows.device)[plan.teacher_rows].to(self.head_rows.dtype)
        return Teacher(self.ends.teacher_hidden(last), self.head_rows, self.full_head)

    def pack_loss(self, pack: Pack, plan: Plan, step_weights: torch.Tensor) -> PackLoss:
        """Loss of one pack."""
        device = self.drafter.fc.weight.device
        teacher = self.teacher(pack, plan)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.settings.dtype == "bfloat16"):
            return pack_loss(self.drafter, pack.aux.to(device), plan, teacher, step_weights, self.settings.loss)

    def step(self, packs: Sequence[Pack], rate: float, group: Processes) -> StepResult:
        """One optimizer step over this process's packs; counts and gradients are summed over all processes."""
        settings = self.settings
        device = self.drafter.fc.weight.device
        plans = [plan_to(plan_unroll(pack, settings.ttt_steps), device) for pack in packs]
        sizes = [[[len(s.queries), float(s.weights.sum())] for s in plan.supervised] for plan in plans] or [[[0, 0.0]] * settings.ttt_steps]
        counts, weighed = group.total(torch.tensor(sizes, dtype=torch.float64, device=device).sum(0)).T
        counts, weighed = counts.clamp(min=1), torch.where(weighed > 0, weighed, 1)
        weights = settings.step_decay ** torch.arange(settings.ttt_steps, device=device) / weighed
        total, correct = torch.zeros(1, device=device, dtype=torch.float64), torch.zeros(settings.ttt_steps, device=device, dtype=torch.int64)
        self.optimizer.zero_grad(set_to_none=True)
        for pack, plan in zip(packs, plans, strict=True):
            found = self.pack_loss(pack, plan, weights)
            found.loss.backward()
            total += found.loss.detach()
            correct += found.correct
        parameters = list(self.drafter.parameters())
        group.total_gradients(parameters)
        norm = nn.utils.clip_grad_norm_(parameters, settings.clip, foreach=False)
        for options in self.optimizer.param_groups:
            options["lr"] = rate
        self.optimizer.step()
        return StepResult(float(group.total(total)), float(norm), (group.total(correct) / counts).tolist())


def prefetched(items: Sequence[Item], load: Callable[[Item], Any]) -> Iterator[Any]:
    """Load one item ahead, in the background."""
    with ThreadPoolExecutor(1, thread_name_prefix="loader") as pool:
        waiting = None
        for item in items:
            ahead = pool.submit(load, item)
            if waiting is not None:
                yield waiting.result()
            waiting = ahead
        if waiting is not None:
            yield waiting.result()


def load_packs(corpus: Corpus, packs: Sequence[Sequence[RowRef]]) -> list[Pack]:
    """Read the packs of one step."""
    return [corpus.packed(refs) for refs in packs]


@dataclass(slots=True)
class Best:
    """The best checkpoint so far, by held-out estimate."""

    estimate: float = -1.0
    step: int = 0
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
