"""Processes that train one drafter together: `torchrun --nproc-per-node N -m pipeline train`.

They run on one machine or many. Each process takes every N-th pack of a step. Counts and gradients are summed over all
processes, so the weights are those of one process with all packs. The launcher sets the number of processes, not the
config: the result does not depend on it. Only the first process writes files; all processes read the same ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed

from pipeline.core.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """One of the processes that train, and its place among them."""

    rank: int = 0
    count: int = 1
    local: int = 0
    """Rank among the processes of this machine."""

    @property
    def leads(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over all processes."""
        if self.count == 1:
            return tensor
        summed = tensor.clone()
        distributed.all_reduce(summed)
        return summed

    def total_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        """Sum every gradient over all processes, in one message."""
        if self.count == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        distributed.all_reduce(flat)
        for grad, summed in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(summed.view_as(grad))

    def agree(self, step: int, device: torch.device) -> None:
        """Wait for all processes, and check that all are at the same step.

        Raises:
            ArtifactError: they are not: a machine does not see the files of the first process.

        """
        if self.count == 1:
            return
        steps = torch.zeros(self.count, dtype=torch.int64, device=device)
        steps[self.rank] = step
        found = self.total(steps).tolist()
        if len(set(found)) > 1:
            raise ArtifactError(
                f"train: processes would begin after different steps, {found} by rank: build/drafter must be on "
                "storage "
                "that all machines share; or remove build/drafter/.checkpoint.partial to begin anew"
            )


ALONE = ProcessGroup()


@contextmanager
def joined(device: str) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started; without torchrun there is one.

    Each process of a machine gets its own GPU.
    """
    if not distributed.is_torchelastic_launched():
        yield ProcessGroup()
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(distributed.get_node_local_rank())
    distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield ProcessGroup(distributed.get_rank(), distributed.get_world_size(), distributed.get_node_local_rank())
    finally:
        distributed.destroy_process_group()
