"""The learner: drafter, teacher and optimizer; one call makes one optimizer step from packs."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import nn

from pipeline.drafter.drafter import Drafter
from pipeline.drafter.losses import Teacher
from pipeline.drafter.objective import PackLoss
from pipeline.drafter.unroll import Pack, UnrollPlan, plan_to, plan_unroll
from pipeline.model.weights.ends import Ends
from pipeline.stages.train.config import TrainSection
from pipeline.stages.train.data import Corpus, RowRef, packs_of_epoch
from pipeline.stages.train.processes import ALONE, ProcessGroup
from pipeline.stages.train.sharding import Objective, shard, sync_gradients, whole

Item = TypeVar("Item")


def learning_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """Return the rate of a step (from 0).

    It rises linearly over the first ``warmup`` share of the steps, then falls to zero as a cosine.
    """
    rising = max(1, round(steps * warmup))
    if step < rising:
        return peak * (step + 1) / rising
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def schedule(corpus: Corpus, settings: TrainSection) -> list[list[list[list[RowRef]]]]:
    """Return the epochs as lists of optimizer steps, which are lists of packs, which are lists of rows."""
    epochs = []
    for epoch in range(settings.epochs):
        packs = packs_of_epoch(corpus.training, settings.tokens_per_batch, settings.seed, epoch)
        epochs.append(
            [packs[start : start + settings.accumulate] for start in range(0, len(packs), settings.accumulate)]
        )
    return epochs


@dataclass(slots=True)
class StepResult:
    """Loss, gradient norm and accuracy of one optimizer step."""

    loss: float
    grad_norm: float
    accuracy: list[float]
    """By step of the unroll: the share of supervised positions where drafter and teacher have the same likeliest draft
    token."""


class Learner:
    """A drafter, its teacher and its optimizer."""

    def __init__(self, drafter: Drafter, ends: Ends, settings: TrainSection, group: ProcessGroup = ALONE) -> None:
        self.drafter, self.ends, self.settings, self.group = drafter, ends, settings, group
        self.device = drafter.fc.weight.device
        self.objective = Objective(drafter)
        self.sharded = settings.parallel == "fsdp" and group.count > 1
        if self.sharded:
            shard(self.objective, group)
        self.head_rows = ends.head[drafter.used]
        self.full_head = None if settings.loss == "kl" else ends.head
        self.optimizer = torch.optim.AdamW(
            drafter.parameters(),
            lr=settings.lr,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            foreach=False,
            fused=self.device.type == "cpu",
        )

    def teacher(self, pack: Pack, plan: UnrollPlan) -> Teacher:
        """Return the target's distributions at the pack's supervised positions."""
        last = pack.last.to(self.head_rows.device, non_blocking=True)[plan.teacher_rows].to(self.head_rows.dtype)
        return Teacher(self.ends.teacher_hidden(last), self.head_rows, self.full_head)

    def pack_loss(self, pack: Pack, plan: UnrollPlan, step_weights: torch.Tensor) -> PackLoss:
        """Return the loss of one pack."""
        teacher = self.teacher(pack, plan)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.settings.dtype == "bfloat16"):
            found: PackLoss = self.objective(
                pack.aux.to(self.device, non_blocking=True), plan, teacher, step_weights, self.settings.loss
            )
        return found

    def step(self, packs: Sequence[Pack], rate: float) -> StepResult:
        """Make one optimizer step over this process's packs; counts and gradients are summed over all processes."""
        settings, group, device = self.settings, self.group, self.device
        if self.sharded and not packs:  # gathering weights and summing gradients takes every process
            packs = [unsupervised_pack(self.drafter.config.hidden_size)]
        plans = [plan_unroll(pack, settings.ttt_steps) for pack in packs]
        sizes = [[[len(s.queries), float(s.weights.sum())] for s in plan.supervised] for plan in plans] or [
            [[0, 0.0]] * settings.ttt_steps
        ]
        counts, weighed = group.total(torch.tensor(sizes, dtype=torch.float64, device=device).sum(0)).T
        counts, weighed = counts.clamp(min=1), torch.where(weighed > 0, weighed, 1)
        weights = settings.step_decay ** torch.arange(settings.ttt_steps, device=device) / weighed
        total, correct = (
            torch.zeros(1, device=device, dtype=torch.float64),
            torch.zeros(settings.ttt_steps, device=device, dtype=torch.int64),
        )
        self.optimizer.zero_grad(set_to_none=True)
        for number, (pack, plan) in enumerate(zip(packs, plans, strict=True), 1):
            sync_gradients(self.objective, last=number == len(packs))
            found = self.pack_loss(pack, plan_to(plan, device), weights)
            # sharded gradients are averaged over the processes, so that the sum needs a factor
            (found.loss * group.count if self.sharded else found.loss).backward()
            total += found.loss.detach()
            correct += found.correct
        parameters = list(self.drafter.parameters())
        if not self.sharded:
            group.total_gradients(parameters)
        norm = whole(nn.utils.clip_grad_norm_(parameters, settings.clip, foreach=False))
        for options in self.optimizer.param_groups:
            options["lr"] = rate
        self.optimizer.step()
        return StepResult(float(group.total(total)), float(norm), (group.total(correct) / counts).tolist())


def prefetched(items: Sequence[Item], load: Callable[[Item], Any]) -> Iterator[Any]:
    """Yield loaded items; the next one is loaded in the background."""
    with ThreadPoolExecutor(1, thread_name_prefix="loader") as pool:
        waiting = None
        for item in items:
            ahead = pool.submit(load, item)
            if waiting is not None:
                yield waiting.result()
            waiting = ahead
        if waiting is not None:
            yield waiting.result()


def unsupervised_pack(width: int) -> Pack:
    """Return a pack of two tokens in which nothing is supervised."""
    return Pack(
        torch.zeros(2, dtype=torch.int64), torch.zeros(2, 3 * width), torch.zeros(2, width), torch.zeros(2), (2,)
    )


def load_packs(corpus: Corpus, packs: Sequence[Sequence[RowRef]], *, pinned: bool = False) -> list[Pack]:
    """Read the packs of one step; with ``pinned`` a GPU can copy them while it computes."""
    loaded = [corpus.packed(refs) for refs in packs]
    return (
        [replace(pack, aux=pack.aux.pin_memory(), last=pack.last.pin_memory()) for pack in loaded] if pinned else loaded
    )


@dataclass(slots=True)
class Best:
    """The best checkpoint so far, by held-out estimate."""

    estimate: float = -1.0
    step: int = 0
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
