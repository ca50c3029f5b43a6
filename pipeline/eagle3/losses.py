"""The loss over the draft vocabulary, computed in chunks so that only one chunk's logits exist at a time.

Teacher: softmax of the target's logits at the position that predicts the same token, over the draft vocabulary's rows of the head.
`kl` is KL(teacher || drafter), renormalized on the draft vocabulary: speculators' definition. The LK losses (arXiv 2602.23881) aim at
alpha = sum_v min(p_v, q_v), the acceptance rate itself, with p normalized over the full vocabulary: `lk_alpha` is -log alpha,
`lk_lambda` is w KL + (1 - w)(1 - alpha) with w = exp(-alpha) held constant.
"""

from typing import Any, Literal, NamedTuple

import torch

LossKind = Literal["kl", "lk_alpha", "lk_lambda"]

CHUNK = 256
"""Supervised positions at a time: few enough for their logits to stay near the processor."""
_VOCAB_CHUNK = 32768
_CACHE_BYTES = 256 << 20
_LEAST_ALPHA = 1e-9


class Judgement(NamedTuple):
    """The teacher's word on some rows, over the draft vocabulary."""

    chances: torch.Tensor
    """Float32 [rows, draft_vocab]: softmax over the draft vocabulary."""
    minus_entropy: torch.Tensor
    """[rows]: sum of p log p."""
    logsumexp: torch.Tensor
    """[rows]: of the logits, so that p over the whole vocabulary is p exp(logsumexp - full)."""
    likeliest: torch.Tensor
    """int64 [rows]: draft id."""


class Teacher:
    """The target's distribution at supervised positions, on the draft vocabulary only; every step of the unroll asks for the same ones."""

    def __init__(self, hidden: torch.Tensor, head_rows: torch.Tensor, full_head: torch.Tensor | None = None) -> None:
        """Hold normed states [positions, hidden], head rows [draft_vocab, hidden], and the whole head when p is normalized over it."""
        self.hidden, self.head_rows = hidden, head_rows
        self.full = None if full_head is None else full_logsumexp(hidden, full_head)
        small = len(hidden) * len(head_rows) * 4 <= _CACHE_BYTES
        self._cached = self._judge(hidden) if small else None

    @torch.no_grad()
    def _judge(self, hidden: torch.Tensor) -> Judgement:
        parts = [_judgement((rows @ self.head_rows.T).float()) for rows in hidden.split(CHUNK)]
        return Judgement(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def at(self, positions: torch.Tensor) -> Judgement:
        """Distributions at some of the positions."""
        if self._cached is None:
            return self._judge(self.hidden[positions])
        return Judgement(*(column.index_select(0, positions) for column in self._cached))


def _judgement(logits: torch.Tensor) -> Judgement:
    likeliest = logits.argmax(-1)
    wholes = logits.clone()
    total = _to_chances(wholes)
    return Judgement(wholes, _dot(wholes, logits) - total, total, likeliest)


def _to_chances(logits: torch.Tensor) -> torch.Tensor:
    """Softmax of each row, in place; gives the logsumexp [rows]. Each number is read as often as it must be: on a CPU `torch.logsumexp` alone costs more."""
    top = logits.amax(-1)
    total = logits.sub_(top[:, None]).exp_().sum(-1)
    logits.mul_(1 / total[:, None])
    return top + total.log()


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Dot product of each row."""
    return (a * b).sum(-1)


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


def losses_and_slopes(kind: LossKind, logits: torch.Tensor, teacher: Judgement, full: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of each row [rows] and its gradient [rows, draft_vocab] by the draft logits, which are overwritten; ``full`` is the teacher's whole log-sum, for LK.

    KL(p || q) = sum p log p - sum p x + logsumexp x for logits x, and its gradient is q - p. With a_v = min(p_v, q_v), the gradient of
    alpha = sum a_v is q_v ([q_v < p_v] - sum_{q < p} q).
    """
    crossed = _dot(teacher.chances, logits)
    divergence = teacher.minus_entropy - crossed + _to_chances(logits)
    q = logits
    if kind == "kl":
        return divergence, q.sub_(teacher.chances)
    assert full is not None, "the LK losses need the teacher normalized over the whole vocabulary"
    p = teacher.chances * (teacher.logsumexp - full).exp()[:, None]
    alpha = torch.minimum(p, q).sum(-1)
    below = q * (q < p)
    rise = below - q * below.sum(-1, keepdim=True)
    if kind == "lk_alpha":
        alpha = alpha.clamp(min=_LEAST_ALPHA)
        return -alpha.log(), -rise / alpha[:, None]
    weight = (-alpha).exp()
    return weight * divergence + (1 - weight) * (1 - alpha), weight[:, None] * (q - teacher.chances) - (1 - weight)[:, None] * rise


class HeadLoss(NamedTuple):
    """What `head_loss` gives."""

    loss: torch.Tensor
    """Float32 scalar, differentiable: the weighted sum over rows."""
    agrees: torch.Tensor
    """Bool [rows]: does the drafter score the teacher's likeliest draft token highest."""


def _highest_at(logits: torch.Tensor, ids: torch.Tensor, *, exact: bool) -> torch.Tensor:
    """Tell of each row whether its highest logit is at ``ids``. Comparing with the maximum costs a CPU a fifth of argmax, but narrow numbers tie too often for it."""
    if exact:
        return logits.gather(1, ids[:, None])[:, 0] == logits.amax(-1)
    return logits.argmax(-1) == ids


class _HeadLoss(torch.autograd.Function):
    """Head and loss together. The gradients are computed in the forward pass, chunk by chunk, so that no logits are kept and none are computed twice."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, head: torch.Tensor, teacher: Teacher, positions: torch.Tensor, weights: torch.Tensor, kind: LossKind
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device = hidden.device.type
        narrow = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        with torch.autocast(device, enabled=False):
            total, agrees = hidden.new_zeros((), dtype=torch.float32), torch.empty_like(positions, dtype=torch.bool)
            dhidden, dhead = torch.zeros_like(hidden), torch.zeros_like(head, dtype=torch.float32)
            cast = head.to(narrow)
            logits = hidden.new_empty(min(CHUNK, len(hidden)), len(head), dtype=narrow)
            for start in range(0, len(hidden), CHUNK):
                at = slice(start, start + CHUNK)
                part, scale = hidden[at].to(narrow), weights[at]
                wanted = teacher.at(positions[at])
                scored = torch.mm(part, cast.T, out=logits[: len(part)]).float()
                agrees[at] = _highest_at(scored, wanted.likeliest, exact=narrow == torch.float32)
                loss, slope = losses_and_slopes(kind, scored, wanted, None if teacher.full is None else teacher.full[positions[at]])
                total += loss @ scale
                slope = slope.to(narrow)
                dhidden[at] = (slope @ cast) * scale[:, None]
                weighed = (part * scale[:, None]).to(narrow)
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
        return dhidden * grads[0].to(dhidden.dtype), dhead * grads[0].to(dhead.dtype), None, None, None, None


def head_loss(hidden: torch.Tensor, head: torch.Tensor, teacher: Teacher, positions: torch.Tensor, weights: torch.Tensor, kind: LossKind) -> HeadLoss:
    """Weighted sum of the loss over rows. With no row: a zero that has gradients (zeros), so that a batch without supervision neither hangs nor breaks.

    Args:
        hidden: [rows, hidden], the drafter's normed output.
        head: [draft_vocab, hidden].
        teacher: the target's side.
        positions: int64 [rows]: each row's position in ``teacher``.
        weights: float32 [rows].
        kind: which loss.

    """
    return HeadLoss(*_HeadLoss.apply(hidden, head, teacher, positions, weights, kind))  # type: ignore[no-untyped-call]
