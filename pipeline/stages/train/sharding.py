"""Where a drafter's weights lie: whole in every process (`ddp`), or a piece in each (`fsdp`), with gradients and optimizer state alike.

Sharded by torch's `fully_shard`: weights are gathered for the forward pass, gradients are summed into pieces once a step. What is
written is always whole tensors, so a run may go on, and a checkpoint be read, with any number of processes.
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
    """`pack_loss` as a module, which is what can be sharded."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self.drafter = drafter

    def forward(self, *arguments: Any) -> PackLoss:
        """Loss of a pack."""
        return pack_loss(self.drafter, *arguments)


def shard(objective: Objective, group: ProcessGroup) -> None:
    """Leave each process its piece of every weight."""
    fully_shard(objective, mesh=init_device_mesh(objective.drafter.fc.weight.device.type, (group.count,)))


def sync_gradients(objective: nn.Module, *, last: bool) -> None:
    """Say before a pack whether it is the step's last: only then are a sharded model's gradients summed, and its weights put away."""
    if isinstance(objective, FSDPModule):
        objective.set_requires_gradient_sync(last)
        objective.set_reshard_after_backward(last)


@contextmanager
def whole_weights(objective: nn.Module) -> Iterator[None]:
    """Have every weight whole in every process for a while; all processes come here together."""
    if not isinstance(objective, FSDPModule):
        yield
        return
    objective.unshard()
    try:
        yield
    finally:
        objective.reshard()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Give a copy of a tensor on the CPU, gathered from its pieces; all processes come here together."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu().clone()


def placed_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Give a whole tensor, or this process's piece of it, as ``like`` lies; all processes come here together."""
    moved = tensor.to(like.device)
    return distribute_tensor(moved, like.device_mesh, like.placements) if isinstance(like, DTensor) else moved
