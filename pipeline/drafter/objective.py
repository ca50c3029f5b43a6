"""The training objective: the weighted loss of all steps over one pack."""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from pipeline.drafter.drafter import Drafter
from pipeline.drafter.losses import LossKind, Teacher, head_loss
from pipeline.drafter.unroll import UnrollPlan, unroll


class PackLoss(NamedTuple):
    """Loss and accuracy of one pack."""

    loss: torch.Tensor
    """Scalar, differentiable. Without supervision it is zero, with gradients of zero."""
    correct: torch.Tensor
    """int64 [steps]: supervised positions where drafter and teacher have the same likeliest draft token."""


def pack_loss(
    drafter: Drafter, aux: torch.Tensor, plan: UnrollPlan, teacher: Teacher, step_weights: torch.Tensor, kind: LossKind
) -> PackLoss:
    """Unroll the drafter over a pack, and compute the loss of all steps at once.

    So the head's gradient is summed in one place.

    Args:
        drafter: the weights.
        aux: [tokens, 3 * hidden] of the pack.
        plan: of the pack.
        teacher: at the plan's teacher rows.
        step_weights: float [steps]: the weight at each step of a position of weight 1.
        kind: the loss.

    """
    return loss_of_steps(drafter, unroll(drafter, aux, plan), plan, teacher, step_weights, kind)


def loss_of_steps(
    drafter: Drafter,
    unrolled: Iterable[torch.Tensor],
    plan: UnrollPlan,
    teacher: Teacher,
    step_weights: torch.Tensor,
    kind: LossKind,
) -> PackLoss:
    """Return the loss of each step's layer output [queries, hidden].

    Outputs are laid out by the teacher's positions, so that all steps use the same distributions.
    """
    count = len(plan.teacher_rows)
    hidden = [
        scattered(rows.index_select(0, s.queries), s.teacher, count)
        for rows, s in zip(unrolled, plan.supervised, strict=True)
    ]
    weights = [
        scattered(s.weights * weight, s.teacher, count)
        for s, weight in zip(plan.supervised, step_weights.float(), strict=True)
    ]
    counted = [scattered(torch.ones_like(s.teacher, dtype=torch.bool), s.teacher, count) for s in plan.supervised]
    found = head_loss(
        drafter.norm(torch.stack(hidden, 1)), drafter.lm_head.weight, teacher, torch.stack(weights, 1), kind
    )
    return PackLoss(found.loss, (found.agrees & torch.stack(counted, 1)).sum(0))


def scattered(rows: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
    """Return ``count`` rows: the given ones at ``places``, and zeros elsewhere."""
    return rows.new_zeros(count, *rows.shape[1:]).index_copy(0, places, rows)
