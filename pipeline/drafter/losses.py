"""The loss over the draft vocabulary, computed in chunks so that only one chunk's logits exist at a time.

Teacher: softmax of the target's logits at the position that predicts the same token, over the draft vocabulary's rows of the head.
`kl` is KL(teacher || drafter), renormalized on the draft vocabulary: speculators' definition. The LK losses (arXiv 2602.23881) aim at
alpha = sum_v min(p_v, q_v), the acceptance rate itself, with p normalized over the full vocabulary: `lk_alpha` is -log alpha,
`lk_lambda` is w KL + (1 - w)(1 - alpha) with w = exp(-alpha) held constant.
"""

from typing import Any, Literal, NamedTuple

import torch

LossKind = Literal["kl", "lk_alpha", "lk_lambda"]

CHUNK = 512
"""Rows of logits at a time on a CPU: few enough to stay near the processor, and enough that the head is not laid out for the product too often."""
_GPU_CHUNK = 2048
"""On a GPU: enough to keep it busy."""
_JUDGED = 4
"""Chunks whose positions the teacher judges at a time: a product with a seventh of a chunk's rows is slow."""
_VOCAB_CHUNK = 32768
_LEAST_ALPHA = 1e-9


class TeacherDistribution(NamedTuple):
    """The teacher's word on some positions, over the draft vocabulary."""

    chances: torch.Tensor
    """Float32 [positions, draft_vocab]: softmax over the draft vocabulary."""
    minus_entropy: torch.Tensor
    """[positions]: sum of p log p."""
    logsumexp: torch.Tensor
    """[positions]: of the logits, so that p over the whole vocabulary is p exp(logsumexp - full)."""
    likeliest: torch.Tensor
    """int64 [positions]: draft id."""
    full: torch.Tensor | None
    """[positions]: logsumexp over the whole vocabulary, where the loss needs it."""

    def at(self, some: slice) -> "TeacherDistribution":
        """On some of the positions."""
        return TeacherDistribution._make(None if column is None else column[some] for column in self)


class Teacher:
    """The target's distribution at supervised positions, on the draft vocabulary only."""

    def __init__(self, hidden: torch.Tensor, head_rows: torch.Tensor, full_head: torch.Tensor | None = None) -> None:
        """Hold normed states [positions, hidden], head rows [draft_vocab, hidden], and the whole head when p is normalized over it."""
        self.hidden, self.head_rows = hidden, head_rows
        self.full = None if full_head is None else full_logsumexp(hidden, full_head)

    @torch.no_grad()
    def judge(self, at: slice) -> TeacherDistribution:
        """Distributions at some of the positions. Every step of the unroll wants the same ones, so `head_loss` asks once for all."""
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
    """Softmax of each row, in place, and the logsumexp [...] beside it; ``top`` is each row's highest logit."""
    chances = torch.softmax(logits, -1, out=logits)
    return chances, top - chances.amax(-1).log()


def _dot(rows: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """Dot products of rows [positions, steps, vocab] with their position's chances [positions, vocab]: [positions, steps]."""
    return torch.bmm(chances[:, None], rows.transpose(1, 2))[:, 0]  # the other way round costs a CPU ten times as much


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


def losses_and_slopes(
    kind: LossKind, logits: torch.Tensor, top: torch.Tensor, teacher: TeacherDistribution
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss [positions, steps] and its gradient [positions, steps, draft_vocab] by the draft logits, which are overwritten; ``top`` is each row's highest logit.

    KL(p || q) = sum p log p - sum p x + logsumexp x for logits x, and its gradient is q - p. With a_v = min(p_v, q_v), the gradient of
    alpha = sum a_v is q_v ([q_v < p_v] - sum_{q < p} q).
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
    """What `head_loss` gives."""

    loss: torch.Tensor
    """Float32 scalar, differentiable: the weighted sum over rows."""
    agrees: torch.Tensor
    """Bool [positions, steps]: does the drafter score the teacher's likeliest draft token highest."""


def _highest_at(logits: torch.Tensor, top: torch.Tensor, ids: torch.Tensor, *, exact: bool) -> torch.Tensor:
    """Tell of each row whether its highest logit is at its position's id. Comparing with the maximum costs a CPU a fifth of argmax, but narrow numbers tie too often for it."""
    if exact:
        return logits.gather(2, ids[:, None, None].expand(*top.shape, 1))[..., 0] == top
    return logits.argmax(-1) == ids[:, None]


class _HeadLoss(torch.autograd.Function):
    """Head and loss together. The gradients are computed in the forward pass, chunk by chunk, so that no logits are kept and none are computed twice."""

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
                if (first := start % (_JUDGED * size)) == 0:
                    judged = teacher.judge(slice(start, start + _JUDGED * size))
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
    """Weighted sum of the loss over rows. With no row: a zero that has gradients (zeros), so that a batch without supervision neither hangs nor breaks.

    Args:
        hidden: [positions, steps, hidden], the drafter's normed output; any finite numbers where the weight is zero.
        head: [draft_vocab, hidden].
        teacher: the target's side, at the same positions.
        weights: float32 [positions, steps].
        kind: which loss.

    """
    return HeadLoss(*_HeadLoss.apply(hidden, head, teacher, weights, kind))  # type: ignore[no-untyped-call]
