"""Alignment, masks and packing of training-time test; each public failure of this kind has a test."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.drafter.chain import DraftCache, extend
from pipeline.drafter.drafter import Drafter
from pipeline.drafter.losses import Teacher, head_loss
from pipeline.drafter.objective import pack_loss
from pipeline.drafter.unroll import Pack, plan_unroll, unroll
from tests.tiny import VOCAB, WIDTH, part_of, random_drafter, random_pack

pytestmark = pytest.mark.slow

STEPS = 4
SHAPES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=5).filter(
    lambda shapes: any(p + c > 1 for p, c in shapes)
)


def loss_sums(drafter: Drafter, pack: Pack, steps: int = STEPS) -> tuple[torch.Tensor, list[int]]:
    """Sum of the loss at each step, and supervised positions."""
    plan = plan_unroll(pack, steps)
    head = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(9))
    teacher = Teacher(pack.last[plan.teacher_rows], head[drafter.used])
    eye = torch.eye(steps)
    sums = [pack_loss(drafter, pack.aux, plan, teacher, only, "kl").loss for only in eye]
    return torch.stack(sums), [len(s.queries) for s in plan.supervised]


def test_the_loss_mask_is_shifted_with_the_inputs() -> None:
    """Case H03: P0 P1 P2 A0 A1 A2 supervises rows 2, 3, 4 at step 0 and one row earlier at each later step."""
    pack = random_pack([(3, 3)])
    plan = plan_unroll(pack, 3)
    supervised = [plan.inputs[plan.queries[s.queries]].tolist() for s in plan.supervised]
    assert supervised == [[2, 3, 4], [1, 2, 3], [0, 1, 2]]
    for step, s in enumerate(plan.supervised):
        assert plan.teacher_rows[s.teacher].tolist() == [row + 1 + step for row in supervised[step]]
        assert torch.equal(
            plan.next_ids[plan.embedded[step]][s.queries],
            pack.token_ids[plan.inputs[plan.queries][s.queries] + 1 + step],
        )


def test_the_position_before_the_answer_gets_a_gradient_from_the_first_step() -> None:
    """SpecForge 885: with an unshifted mask the position of the first draft is never trained."""
    drafter, pack = random_drafter(), random_pack([(6, 5)])
    aux = pack.aux.clone().requires_grad_()
    plan = plan_unroll(pack, 1)
    (hidden,) = unroll(drafter, aux, plan)
    row = plan.inputs[plan.queries].tolist().index(5)  # the last prompt token
    assert row in plan.supervised[0].queries.tolist()
    teacher = Teacher(
        pack.last[plan.teacher_rows[plan.supervised[0].teacher[:1]]],
        torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(9)),
    )
    loss = head_loss(drafter.norm(hidden[[row], None]), drafter.lm_head.weight, teacher, torch.ones(1, 1), "kl").loss
    (grad,) = torch.autograd.grad(loss, aux)
    assert grad[5].abs().max() > 0


@settings(deadline=None, max_examples=12)
@given(SHAPES, st.integers(0, 50))
def test_a_packed_loss_is_the_sum_of_the_single_ones(shapes: list[tuple[int, int]], seed: int) -> None:
    drafter, pack = random_drafter(seed), random_pack(shapes, seed)
    packed, counts = loss_sums(drafter, pack)
    alone = [loss_sums(drafter, part_of(pack, number)) for number, shape in enumerate(shapes) if sum(shape) > 1]
    torch.testing.assert_close(packed, torch.stack([sums for sums, _ in alone]).sum(0), atol=1e-5, rtol=1e-6)
    assert counts == [sum(column) for column in zip(*[counted for _, counted in alone], strict=True)]


def test_nothing_of_one_conversation_reaches_another_in_its_pack() -> None:
    """verl-SpeCo 18: attention or labels across documents make training look better than serving."""
    drafter, pack = random_drafter(), random_pack([(4, 9), (3, 8), (5, 5)])
    plan = plan_unroll(pack, STEPS, every_row=True)
    changed = Pack(pack.token_ids.clone(), pack.aux.clone(), pack.last, pack.weights, pack.lengths)
    changed.token_ids[:13] = (changed.token_ids[:13] + 1) % VOCAB
    changed.aux[:13] += 1
    changed.token_ids[24:] = (changed.token_ids[24:] + 1) % VOCAB
    changed.aux[24:] -= 1
    middle = (plan.inputs[plan.queries] >= 13) & (plan.inputs[plan.queries] < 24)
    for mine, theirs in zip(
        unroll(drafter, pack.aux, plan),
        unroll(drafter, changed.aux, plan_unroll(changed, STEPS, every_row=True)),
        strict=True,
    ):
        assert torch.equal(mine[middle], theirs[middle])
        assert not torch.equal(mine[~middle], theirs[~middle])


def test_appended_tokens_without_supervision_do_not_change_the_loss() -> None:
    """EAGLE 317: a padded last position that enters the loss is a constant noise."""
    drafter, pack = random_drafter(), random_pack([(5, 8)])
    noise = random_pack([(6, 0)], seed=3)
    longer = Pack(
        torch.cat([pack.token_ids, noise.token_ids]),
        torch.cat([pack.aux, noise.aux]),
        torch.cat([pack.last, noise.last]),
        torch.cat([pack.weights, torch.zeros(6)]),
        (19,),
    )
    short, counts = loss_sums(drafter, pack)
    padded, padded_counts = loss_sums(drafter, longer)
    assert counts == padded_counts
    torch.testing.assert_close(short, padded, atol=1e-6, rtol=1e-6)


def test_a_row_without_supervision_gives_a_finite_zero_with_gradients_for_every_weight() -> None:
    """TorchSpec 24: a loss without a graph on one rank hangs the others."""
    drafter = random_drafter()
    sums, counts = loss_sums(drafter, random_pack([(9, 0)]))
    assert counts == [0] * STEPS
    assert sums.tolist() == [0.0] * STEPS
    sums.sum().backward()
    for name, weight in drafter.named_parameters():
        assert weight.grad is not None, name
        assert torch.equal(weight.grad, torch.zeros_like(weight)), name


def test_leaving_out_rows_that_no_step_supervises_changes_nothing() -> None:
    drafter, pack = random_drafter(), random_pack([(20, 6), (1, 4)])
    few, every = plan_unroll(pack, STEPS), plan_unroll(pack, STEPS, every_row=True)
    assert len(few.queries) < len(every.queries)
    for step, (mine, whole) in enumerate(
        zip(unroll(drafter, pack.aux, few), unroll(drafter, pack.aux, every), strict=True)
    ):
        torch.testing.assert_close(
            mine[few.supervised[step].queries], whole[every.supervised[step].queries], atol=1e-5, rtol=1e-5
        )


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 10), st.integers(2, 10), st.integers(0, 20))
def test_training_steps_equal_real_drafting_with_a_cache(prompt: int, completion: int, seed: int) -> None:
    drafter, pack = random_drafter(seed), random_pack([(prompt, completion)], seed)
    length = prompt + completion
    steps = [hidden.detach() for hidden in unroll(drafter, pack.aux, plan_unroll(pack, STEPS, every_row=True))]
    with torch.no_grad():
        for row in range(length - 1):
            cache, places = DraftCache(), torch.arange(row + 1)[None]
            hidden = extend(
                drafter,
                cache,
                drafter.fuse(pack.aux[None, : row + 1]),
                pack.token_ids[None, 1 : row + 2],
                places,
                torch.ones_like(places, dtype=torch.bool),
            )[:, -1:]
            for step in range(min(STEPS, length - 1 - row)):
                if step:
                    place = torch.tensor([[row + step]])
                    hidden = extend(
                        drafter,
                        cache,
                        hidden,
                        pack.token_ids[None, row + 1 + step : row + 2 + step],
                        place,
                        torch.ones_like(place, dtype=torch.bool),
                    )
                torch.testing.assert_close(hidden[0, 0], steps[step][row], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("steps", [1, 7])
def test_a_conversation_shorter_than_the_unroll_is_no_problem(steps: int) -> None:
    sums, counts = loss_sums(random_drafter(), random_pack([(1, 1), (1, 2)]), steps)
    assert torch.isfinite(sums).all()
    assert counts == [3, 1, 0, 0, 0, 0, 0][:steps]
