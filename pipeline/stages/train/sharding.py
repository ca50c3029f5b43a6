"""Placement of a drafter's weights, gradients and optimizer state in one or many processes.

With `ddp` they are whole in every process, with `fsdp` each process has a piece. Torch's `fully_shard` gathers weights
for the forward pass and sums gradients into pieces once a step. Files hold whole tensors, so a run can go on, and a
checkpoint be read, with any number of processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from pipeline.drafter.drafter import Drafter
from pipeline.drafter.objective import PackLoss, pack_loss
from pipeline.stages.train.processes import ProcessGroup


class Objective(nn.Module):
    """`pack_loss` as a module, since only modules can be sharded."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self.drafter = drafter

    def forward(self, *arguments: Any) -> PackLoss:
        """Return the loss of a pack."""
        return pack_loss(self.drafter, *arguments)


def shard(objective: Objective, group: ProcessGroup) -> None:
    """Keep in each process only its piece of every weight."""
    fully_shard(objective, mesh=init_device_mesh(objective.drafter.fc.weight.device.type, (group.count,)))


def sync_gradients(objective: nn.Module, *, last: bool) -> None:
    """Make a sharded model sum its gradients and drop its gathered weights after the step's ``last`` pack only."""
    if isinstance(objective, FSDPModule):
        objective.set_requires_gradient_sync(last)
        objective.set_reshard_after_backward(last)


@contextmanager
def whole_weights(objective: nn.Module) -> Iterator[None]:
    """Gather every weight in every process for the block; all processes must enter together."""
    if not isinstance(objective, FSDPModule):
        yield
        return
    objective.unshard()
    try:
        yield
    finally:
        objective.reshard()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor on the CPU, gathered from its pieces; all processes must call together."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu().clone()


def placed_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or this process's piece of it, placed as ``like`` is; all processes must call together."""
    moved = tensor.to(like.device)
    return distribute_tensor(moved, like.device_mesh, like.placements) if isinstance(like, DTensor) else moved
