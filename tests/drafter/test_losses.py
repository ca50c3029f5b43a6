"""The chunked loss against the same formula written plainly."""

import pytest
import torch

from pipeline.drafter import losses
from pipeline.drafter.losses import LossKind, Teacher, full_argmax, full_logsumexp, head_loss
from pipeline.drafter.target_argmax import TargetArgmax

pytestmark = pytest.mark.slow

ROWS, STEPS, WIDTH, DRAFT, VOCAB = 37, 2, 16, 20, 70


def draw(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROWS, STEPS, WIDTH, generator=generator, requires_grad=True)
    head = torch.randn(DRAFT, WIDTH, generator=generator, requires_grad=True)
    return hidden, head, torch.randn(ROWS, WIDTH, generator=generator), torch.randn(VOCAB, WIDTH, generator=generator)


def plain(
    kind: LossKind,
    hidden: torch.Tensor,
    head: torch.Tensor,
    teacher: torch.Tensor,
    target_head: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    q = torch.softmax(hidden @ head.T, -1)
    full = torch.softmax(teacher @ target_head.T, -1)[:, None, ::3][..., :DRAFT]
    p = torch.softmax((teacher @ target_head.T)[:, None, ::3][..., :DRAFT], -1)
    divergence = (p * (p.log() - q.log())).sum(-1)
    alpha = torch.minimum(full, q).sum(-1)
    weight = torch.exp(-alpha.detach())
    return {"kl": divergence, "lk_alpha": -alpha.log(), "lk_lambda": weight * divergence + (1 - weight) * (1 - alpha)}[
        kind
    ].flatten() @ weights.flatten()


@pytest.mark.parametrize("kind", ["kl", "lk_alpha", "lk_lambda"])
@pytest.mark.parametrize("chunk", [1, 8, 1024])
def test_loss_and_gradients_equal_the_formula_whatever_the_chunks(
    kind: LossKind, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "CHUNK", chunk)
    hidden, head, teacher, target_head = draw()
    used = torch.arange(0, VOCAB, 3)[:DRAFT]
    weights = torch.rand(ROWS, STEPS, generator=torch.Generator().manual_seed(5))
    side = Teacher(teacher, target_head[used], None if kind == "kl" else target_head)
    found = head_loss(hidden, head, side, weights, kind)
    wanted = plain(kind, hidden, head, teacher, target_head, weights)
    torch.testing.assert_close(found.loss, wanted)
    for mine, theirs in zip(
        torch.autograd.grad(found.loss * 0.7, [hidden, head]),
        torch.autograd.grad(wanted * 0.7, [hidden, head]),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_agreement_counts_rows_with_the_same_likeliest_draft_token() -> None:
    hidden, head, teacher, target_head = draw()
    rows = target_head[:DRAFT]
    expected = ((hidden @ head.T).argmax(-1) == (teacher @ rows.T).argmax(-1)[:, None]).sum()
    assert head_loss(hidden, head, Teacher(teacher, rows), torch.ones(ROWS, STEPS), "kl").agrees.sum() == expected


def test_slices_of_the_vocabulary_give_the_whole_vocabularys_choice_and_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_VOCAB_CHUNK", 16)
    _, _, teacher, target_head = draw()
    target_head[40] = target_head[3]  # a tie goes to the lower id
    logits = teacher @ target_head.T
    assert torch.equal(full_argmax(teacher, target_head, rows=10), logits.argmax(-1))
    torch.testing.assert_close(full_logsumexp(teacher, target_head), torch.logsumexp(logits, -1))
    assert full_argmax(teacher[:0], target_head).shape == (0,)


@pytest.mark.parametrize("shared", [[], [0, 1, 5], list(range(10, 70)), list(range(60))])
def test_rows_that_many_ids_share_are_scored_once_without_changing_a_choice(shared: list[int]) -> None:
    _, _, teacher, target_head = draw()
    target_head[shared] = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
    choices = TargetArgmax(target_head)
    assert (choices.ids is None) == (len(shared) < 9)
    if choices.ids is not None:
        assert len(choices.ids) == VOCAB - len(shared) + 1
    assert torch.equal(choices.of(teacher), (teacher @ target_head.T).argmax(-1))
