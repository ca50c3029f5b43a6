"""The loss over the draft vocabulary, computed in chunks of rows.

Only one chunk's logits exist at a time. The teacher is the softmax of the target's logits at the position that predicts
the same token, over the draft vocabulary's rows. `kl` is KL(teacher || drafter), renormalized on the draft vocabulary:
speculators' definition. The LK losses (arXiv 2602.23881) raise alpha = sum_v min(p_v, q_v), the acceptance rate itself,
with p normalized over the full vocabulary: `lk_alpha` is -log alpha, `lk_lambda` is w KL + (1 - w)(1 - alpha) with w =
exp(-alpha) held constant.
"""

from typing import Any, Literal, NamedTuple

import torch

LossKind = Literal["kl", "lk_alpha", "lk_lambda"]

CHUNK = 512
"""Rows of logits at a time on a CPU: few enough for the processor's cache, and enough that the head is not repacked too
often for the product."""
_GPU_CHUNK = 2048
"""Rows of logits at a time on a GPU: enough to keep it busy."""
_TEACHER_CHUNKS = 4
"""Chunks for whose positions the teacher is computed at a time: a chunk has few positions, and a product with few rows
is slow."""
_VOCAB_CHUNK = 32768
_LEAST_ALPHA = 1e-9


class TeacherDistribution(NamedTuple):
    """The teacher's distribution at some positions, over the draft vocabulary."""

    chances: torch.Tensor
    """Float32 [positions, draft_vocab]: softmax over the draft vocabulary."""
    minus_entropy: torch.Tensor
    """[positions]: the sum of p log p."""
    logsumexp: torch.Tensor
    """[positions]: logsumexp of the logits; p over the whole vocabulary is p exp(logsumexp - full)."""
    likeliest: torch.Tensor
    """int64 [positions]: the likeliest draft id."""
    full: torch.Tensor | None
    """[positions]: logsumexp over the whole vocabulary, if the loss needs it."""

    def at(self, some: slice) -> "TeacherDistribution":
        """Return the distribution at some of the positions."""
        return TeacherDistribution._make(None if column is None else column[some] for column in self)


class Teacher:
    """The target's distribution at supervised positions, on the draft vocabulary only."""

    def __init__(self, hidden: torch.Tensor, head_rows: torch.Tensor, full_head: torch.Tensor | None = None) -> None:
        """Hold the target's side of the loss.

        Args:
            hidden: normed states [positions, hidden].
            head_rows: the head's rows of the draft vocabulary [draft_vocab, hidden].
            full_head: the whole head, if the loss normalizes p over the whole vocabulary.

        """
        self.hidden, self.head_rows = hidden, head_rows
        self.full = None if full_head is None else full_logsumexp(hidden, full_head)

    @torch.no_grad()
    def judge(self, at: slice) -> TeacherDistribution:
        """Return the distributions at some positions; `head_loss` computes them once for all steps of the unroll."""
        logits = (self.hidden[at] @ self.head_rows.T).float()
        top, likeliest = logits.max(-1)
        logs = torch.log_softmax(logits, -1, out=logits)
        chances = logs.exp()
        return TeacherDistribution(
            chances,
            _dot(logs[:, None], chances)[:, 0],
            top - logs.amax(-1),
            likeliest,
            None if self.full is None else self.full[at],
        )


def _softmax(logits: torch.Tensor, top: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the softmax of each row in place, and its logsumexp [...].

    ``top`` is each row's highest logit.
    """
    chances = torch.softmax(logits, -1, out=logits)
    return chances, top - chances.amax(-1).log()


def _dot(rows: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """Return the dot products of rows [positions, steps, vocab] and chances [positions, vocab]: [positions, steps]."""
    return torch.bmm(chances[:, None], rows.transpose(1, 2))[:, 0]  # rows @ chances takes ten times as long on a CPU


def full_logsumexp(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """Return the logsumexp over the whole vocabulary, computed in slices: [positions]."""
    with torch.no_grad():
        parts = [torch.logsumexp((hidden @ rows.T).float(), -1) for rows in head.split(_VOCAB_CHUNK)]
        return torch.logsumexp(torch.stack(parts), 0)


def full_argmax(hidden: torch.Tensor, head: torch.Tensor, rows: int = 512) -> torch.Tensor:
    """Return the token with the largest logit, int64 [positions].

    Ties go to the lowest id, as in argmax over the whole row.
    """
    with torch.no_grad():
        best = []
        for part in hidden.split(rows):
            tops = [(part @ piece.T).max(-1) for piece in head.split(_VOCAB_CHUNK)]
            values = torch.stack([top.values for top in tops])
            tokens = torch.stack([top.indices + _VOCAB_CHUNK * number for number, top in enumerate(tops)])
            best.append(tokens.gather(0, values.argmax(0)[None])[0])
        return torch.cat(best) if best else torch.zeros(0, dtype=torch.int64, device=hidden.device)


def losses_and_slopes(
    kind: LossKind, logits: torch.Tensor, top: torch.Tensor, teacher: TeacherDistribution
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss [positions, steps] and its gradient by the draft logits [positions, steps, draft_vocab].

    ``logits`` are overwritten; ``top`` is each row's highest logit.

    KL(p || q) = sum p log p - sum p x + logsumexp x for logits x, and its gradient is q - p. With a_v = min(p_v, q_v),
    the gradient of alpha = sum a_v is q_v ([q_v < p_v] - sum_{q < p} q).
    """
    crossed = _dot(logits, teacher.chances)
    q, total = _softmax(logits, top)
    divergence = teacher.minus_entropy[:, None] - crossed + total
    chances = teacher.chances[:, None]
    if kind == "kl":
        return divergence, q.sub_(chances)
    assert teacher.full is not None, "the LK losses need the teacher normalized over the whole vocabulary"
    p = chances * (teacher.logsumexp - teacher.full).exp()[:, None, None]
    alpha = torch.minimum(p, q).sum(-1)
    below = q * (q < p)
    rise = below - q * below.sum(-1, keepdim=True)
    if kind == "lk_alpha":
        alpha = alpha.clamp(min=_LEAST_ALPHA)
        return -alpha.log(), -rise / alpha[..., None]
    weight = (-alpha).exp()
    return weight * divergence + (1 - weight) * (1 - alpha), weight[..., None] * (q - chances) - (1 - weight)[
        ..., None
    ] * rise


class HeadLoss(NamedTuple):
    """The result of `head_loss`."""

    loss: torch.Tensor
    """Float32 scalar, differentiable: the weighted sum over rows."""
    agrees: torch.Tensor
    """Bool [positions, steps]: the drafter's highest logit is at the teacher's likeliest draft token."""


def _highest_at(logits: torch.Tensor, top: torch.Tensor, ids: torch.Tensor, *, exact: bool) -> torch.Tensor:
    """Return whether each row's highest logit is at its position's id.

    On a CPU a comparison with the maximum takes a fifth of the time of argmax, but narrow numbers tie too often for it.
    """
    if exact:
        return logits.gather(2, ids[:, None, None].expand(*top.shape, 1))[..., 0] == top
    return logits.argmax(-1) == ids[:, None]


class _HeadLoss(torch.autograd.Function):
    """Head and loss in one function.

    The forward pass also computes the gradients, chunk by chunk, so that no logits are kept or computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, head: torch.Tensor, teacher: Teacher, weights: torch.Tensor, kind: LossKind
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device, (positions, steps, width) = hidden.device.type, hidden.shape
        narrow = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        size = max(1, (CHUNK if device == "cpu" else _GPU_CHUNK) // steps)
        with torch.autocast(device, enabled=False):
            total, agrees = hidden.new_zeros((), dtype=torch.float32), torch.empty_like(weights, dtype=torch.bool)
            dhidden, dhead = torch.empty_like(hidden), torch.zeros_like(head, dtype=torch.float32)
            cast = head.to(narrow)
            logits = hidden.new_empty(min(size, positions) * steps, len(head), dtype=narrow)
            for start in range(0, positions, size):
                at = slice(start, start + size)
                if (first := start % (_TEACHER_CHUNKS * size)) == 0:
                    judged = teacher.judge(slice(start, start + _TEACHER_CHUNKS * size))
                wanted, scale = judged.at(slice(first, first + size)), weights[at]
                part = hidden[at].flatten(0, 1).to(narrow)
                scored = torch.mm(part, cast.T, out=logits[: len(part)]).float().view(-1, steps, len(head))
                top = scored.amax(-1)
                agrees[at] = _highest_at(scored, top, wanted.likeliest, exact=narrow == torch.float32)
                loss, slope = losses_and_slopes(kind, scored, top, wanted)
                total += (loss * scale).sum()
                slope = slope.flatten(0, 1).to(narrow)
                dhidden[at] = (slope @ cast).view(-1, steps, width) * scale[..., None]
                weighed = (part * scale.reshape(-1, 1)).to(narrow)
                if narrow == torch.float32:
                    dhead.addmm_(slope.T, weighed)
                else:
                    dhead += slope.T @ weighed
        ctx.save_for_backward(dhidden, dhead.to(head.dtype))
        ctx.mark_non_differentiable(agrees)
        return total, agrees

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        dhidden, dhead = ctx.saved_tensors
        return dhidden * grads[0].to(dhidden.dtype), dhead * grads[0].to(dhead.dtype), None, None, None


def head_loss(
    hidden: torch.Tensor, head: torch.Tensor, teacher: Teacher, weights: torch.Tensor, kind: LossKind
) -> HeadLoss:
    """Return the weighted sum of the loss over rows.

    Without rows it is zero with gradients of zero, so that a batch without supervision neither hangs nor fails.

    Args:
        hidden: [positions, steps, hidden], the drafter's normed output; any finite numbers where the weight is zero.
        head: [draft_vocab, hidden].
        teacher: the target's side, at the same positions.
        weights: float32 [positions, steps].
        kind: which loss.

    """
    return HeadLoss(*_HeadLoss.apply(hidden, head, teacher, weights, kind))  # type: ignore[no-untyped-call]
