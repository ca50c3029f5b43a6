"""The loss over the draft vocabulary, computed in chunks so that only one chunk's logits exist at a time.

Teacher: softmax of the target's logits at the position that predicts the same token, over the draft vocabulary's rows of the head.
`kl` is KL(teacher || drafter), renormalized on the draft vocabulary: speculators' definition. The LK losses (arXiv 2602.23881) aim at
alpha = sum_v min(p_v, q_v), the acceptance rate itself, with p normalized over the full vocabulary: `lk_alpha` is -log alpha,
`lk_lambda` is w KL + (1 - w)(1 - alpha) with w = exp(-alpha) held constant.
"""

from typing import Any, Literal, NamedTuple

import torch

LossKind = Literal["kl", "lk_alpha", "lk_lambda"]

CHUNK = 1024
"""Supervised positions at a time."""
_VOCAB_CHUNK = 32768
_CACHE_BYTES = 256 << 20


class Teacher:
    """The target's distribution at supervised positions, on the draft vocabulary only."""

    def __init__(self, hidden: torch.Tensor, head_rows: torch.Tensor, full_head: torch.Tensor | None = None) -> None:
        """Hold normed states [positions, hidden], head rows [draft_vocab, hidden], and the whole head when p is normalized over it."""
        self.hidden, self.head_rows = hidden, head_rows
        self.full = None if full_head is None else full_logsumexp(hidden, full_head)
        small = len(hidden) * len(head_rows) * 4 <= _CACHE_BYTES
        self._cached = self._logits(hidden) if small else None

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return (hidden @ self.head_rows.T).float()

    def logits(self, positions: torch.Tensor) -> torch.Tensor:
        """Float32 logits [rows, draft_vocab] at some of the positions."""
        return self._cached[positions] if self._cached is not None else self._logits(self.hidden[positions])


def full_logsumexp(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """Log of the sum over the whole vocabulary, a slice of it at a time: [positions]."""
    with torch.no_grad():
        parts = [torch.logsumexp((hidden @ rows.T).float(), -1) for rows in head.split(_VOCAB_CHUNK)]
        return torch.logsumexp(torch.stack(parts), 0)


def full_argmax(hidden: torch.Tensor, head: torch.Tensor, rows: int = 512) -> torch.Tensor:
    """Token that the head scores highest, [positions]; ties go to the lowest id, as argmax of the whole row would give."""
    with torch.no_grad():
        best = []
        for part in hidden.split(rows):
            tops = [(part @ piece.T).max(-1) for piece in head.split(_VOCAB_CHUNK)]
            values = torch.stack([top.values for top in tops])
            tokens = torch.stack([top.indices + _VOCAB_CHUNK * number for number, top in enumerate(tops)])
            best.append(tokens.gather(0, values.argmax(0)[None])[0])
        return torch.cat(best) if best else torch.zeros(0, dtype=torch.int64, device=hidden.device)


def row_losses(kind: LossKind, logits: torch.Tensor, teacher: torch.Tensor, full: torch.Tensor | None) -> torch.Tensor:
    """Loss of each row [rows] from draft and teacher logits [rows, draft_vocab] and, for LK, the teacher's full log-sum [rows]."""
    drafted = torch.log_softmax(logits.float(), -1)
    if kind == "lk_alpha":
        return -_alpha(drafted, teacher, full).clamp(min=1e-9).log()
    wanted = torch.log_softmax(teacher, -1)
    divergence = (wanted.exp() * (wanted - drafted)).sum(-1)
    if kind == "kl":
        return divergence
    alpha = _alpha(drafted, teacher, full)
    weight = (-alpha.detach()).exp()
    return weight * divergence + (1 - weight) * (1 - alpha)


def _alpha(drafted: torch.Tensor, teacher: torch.Tensor, full: torch.Tensor | None) -> torch.Tensor:
    assert full is not None, "the LK losses need the teacher normalized over the whole vocabulary"
    return torch.minimum((teacher - full[:, None]).exp(), drafted.exp()).sum(-1)


class HeadLoss(NamedTuple):
    """Sums over rows."""

    loss: torch.Tensor
    """Scalar, differentiable."""
    correct: torch.Tensor
    """Rows whose likeliest draft token is the teacher's likeliest on the draft vocabulary; int64 scalar."""


class _HeadLoss(torch.autograd.Function):
    """Head and loss together. The gradients are computed in the forward pass, chunk by chunk, so that no logits are kept."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, head: torch.Tensor, teacher: Teacher, positions: torch.Tensor, kind: LossKind
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total, correct = hidden.new_zeros((), dtype=torch.float32), positions.new_zeros(())
        dhidden, dhead = torch.zeros_like(hidden), torch.zeros_like(head, dtype=torch.float32)
        cast = head.to(hidden.dtype)
        for start in range(0, len(hidden), CHUNK):
            part, at = hidden[start : start + CHUNK], positions[start : start + CHUNK]
            wanted = teacher.logits(at)
            full = None if teacher.full is None else teacher.full[at]
            logits = (part @ cast.T).float().detach()
            with torch.enable_grad():
                logits.requires_grad_()
                loss = row_losses(kind, logits, wanted, full).sum()
            (slope,) = torch.autograd.grad(loss, logits)
            total += loss.detach()
            correct += (logits.argmax(-1) == wanted.argmax(-1)).sum()
            slope = slope.to(hidden.dtype)
            dhidden[start : start + CHUNK] = slope @ cast
            dhead += slope.T @ part
        ctx.save_for_backward(dhidden, dhead.to(head.dtype))
        ctx.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        dhidden, dhead = ctx.saved_tensors
        return dhidden * grads[0].to(dhidden.dtype), dhead * grads[0].to(dhead.dtype), None, None, None


def head_loss(hidden: torch.Tensor, head: torch.Tensor, teacher: Teacher, positions: torch.Tensor, kind: LossKind) -> HeadLoss:
    """Sum of the loss over rows. With no row: a zero that has gradients (zeros), so that a batch without supervision neither hangs nor breaks.

    Args:
        hidden: [rows, hidden], the drafter's normed output.
        head: [draft_vocab, hidden].
        teacher: the target's side.
        positions: int64 [rows]: each row's position in ``teacher``.
        kind: which loss.

    """
    return HeadLoss(*_HeadLoss.apply(hidden, head, teacher, positions, kind))  # type: ignore[no-untyped-call]
