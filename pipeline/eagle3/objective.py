"""What training minimizes: the loss of all steps over one pack, each step weighed."""

from typing import NamedTuple

import torch

from pipeline.eagle3.drafter import Drafter
from pipeline.eagle3.losses import LossKind, Teacher, head_loss
from pipeline.eagle3.unroll import Plan, unroll


class PackLoss(NamedTuple):
    """Of one pack."""

    loss: torch.Tensor
    """Scalar, differentiable. Without supervision it is zero, and still has gradients: zeros."""
    correct: torch.Tensor
    """int64 [steps]: supervised positions where drafter and teacher agree on the likeliest draft token."""


def pack_loss(drafter: Drafter, aux: torch.Tensor, plan: Plan, teacher: Teacher, step_weights: torch.Tensor, kind: LossKind) -> PackLoss:
    """Unroll the drafter over a pack and take the loss of all steps at once, so that the head's gradient is summed in one place.

    Args:
        drafter: the weights.
        aux: [tokens, 3 * hidden] of the pack.
        plan: its geometry.
        teacher: at the plan's teacher rows.
        step_weights: float [steps]: what a position of weight 1 counts at each step.
        kind: which loss.

    """
    hidden = [rows.index_select(0, s.queries) for s, rows in zip(plan.supervised, unroll(drafter, aux, plan), strict=True)]
    weights = [s.weights * weight for s, weight in zip(plan.supervised, step_weights.float(), strict=True)]
    positions = torch.cat([s.teacher for s in plan.supervised])
    found = head_loss(drafter.norm(torch.cat(hidden)), drafter.lm_head.weight, teacher, positions, torch.cat(weights), kind)
    correct = torch.stack([part.sum() for part in found.agrees.split([len(rows) for rows in hidden])])
    return PackLoss(found.loss, correct)
