"""Golden values made with speculators 0.9.0: states, logits at every step, chain drafting, the loss."""

import json
from pathlib import Path

import pytest
import torch

from pipeline.core.files.tensors import load_tensors
from pipeline.drafter.chain import DraftCache, extend
from pipeline.drafter.checkpoint import assemble
from pipeline.drafter.config import DrafterConfig
from pipeline.drafter.drafter import Drafter
from pipeline.drafter.losses import Teacher, head_loss
from pipeline.drafter.objective import scattered
from pipeline.drafter.unroll import Pack, plan_unroll, unroll
from pipeline.model.weights.ends import open_ends
from pipeline.model.weights.target import capturing, open_model
from tests.conftest import DATA

pytestmark = pytest.mark.slow

GOLDEN = DATA / "golden" / "eagle3"
TOLERANCE = 2e-5
DOCUMENTS = ["doc0", "doc1"]
STEPS = 4

Case = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def case() -> Case:
    return load_tensors(GOLDEN / "case.safetensors")


@pytest.fixture(scope="module")
def drafter() -> Drafter:
    config = DrafterConfig(
        hidden_size=48,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=12,
        vocab_size=512,
        draft_vocab_size=200,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=256,
        layer_ids=[2, 4, 5],
        target_layers=8,
        target_sha256="",
        target_name="golden",
        trained_on={},
        training={},
    )
    tensors = load_tensors(GOLDEN / "draft.safetensors")
    return assemble(config, tensors, tensors.pop("embed_tokens.weight"), "golden")


def pack(case: Case, names: list[str]) -> Pack:
    parts = {
        key: torch.cat([case[f"{name}.{key}"] for name in names])
        for key in ("input_ids", "aux_hidden", "last_hidden_prenorm", "loss_mask")
    }
    lengths = tuple(len(case[f"{name}.input_ids"]) for name in names)
    return Pack(
        parts["input_ids"], parts["aux_hidden"], parts["last_hidden_prenorm"], parts["loss_mask"].float(), lengths
    )


@pytest.mark.parametrize("name", DOCUMENTS)
def test_states_of_the_target_are_the_golden_ones(case: Case, name: str) -> None:
    target = open_model(GOLDEN / "target", dtype="float32", device="cpu")
    with torch.no_grad(), capturing(target, [2, 4, 5]) as caught:
        logits = target.model(case[f"{name}.input_ids"][None]).logits[0]
    aux = torch.cat([caught[number][0] for number in (2, 4, 5)], -1)
    torch.testing.assert_close(aux, case[f"{name}.aux_hidden"], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(caught[8][0], case[f"{name}.last_hidden_prenorm"], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(logits, case[f"{name}.target_logits"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("names", [*([name] for name in DOCUMENTS), DOCUMENTS])
def test_logits_of_every_step_are_the_golden_ones_alone_and_packed(
    case: Case, drafter: Drafter, names: list[str]
) -> None:
    packed = pack(case, names)
    plan = plan_unroll(packed, STEPS, every_row=True)
    for step, hidden in enumerate(unroll(drafter, packed.aux, plan)):
        rows = drafter.logits(hidden).split([length - 1 for length in packed.lengths])
        for name, found in zip(names, rows, strict=True):
            golden = case[f"{name}.draft_logits.step{step}"]
            torch.testing.assert_close(found[: len(golden)], golden, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_chain_drafting_with_a_cache_over_the_true_tokens_gives_the_logits_of_each_step(
    case: Case, drafter: Drafter, name: str
) -> None:
    token_ids, aux = case[f"{name}.input_ids"], case[f"{name}.aux_hidden"]
    length = len(token_ids)
    for row in range(length - 1):
        cache = DraftCache()
        places = torch.arange(row + 1)[None]
        hidden = extend(
            drafter,
            cache,
            drafter.fuse(aux[None, : row + 1]),
            token_ids[None, 1 : row + 2],
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
                    token_ids[None, row + 1 + step : row + 2 + step],
                    place,
                    torch.ones_like(place, dtype=torch.bool),
                )
            torch.testing.assert_close(
                drafter.logits(hidden)[0, 0], case[f"{name}.draft_logits.step{step}"][row], atol=TOLERANCE, rtol=0
            )


@pytest.mark.parametrize("decay", [1.0, 0.8])
def test_the_loss_and_its_gradient_are_speculators_own(case: Case, drafter: Drafter, decay: float) -> None:
    golden = json.loads(Path(GOLDEN / "expected.json").read_text())["kl_div_by_decay"][str(decay)]
    packed = pack(case, DOCUMENTS)
    plan = plan_unroll(packed, STEPS)
    ends = open_ends(GOLDEN / "target")
    teacher = Teacher(ends.teacher_hidden(packed.last[plan.teacher_rows]), ends.head[drafter.used])
    total = torch.zeros(())
    for step, hidden in enumerate(unroll(drafter, packed.aux, plan)):
        supervised = plan.supervised[step]
        assert len(supervised.queries) == golden[f"full_acc_{step}_total"]
        laid, weights = (
            scattered(rows, supervised.teacher, len(plan.teacher_rows))[:, None]
            for rows in (hidden[supervised.queries], supervised.weights)
        )
        part = head_loss(drafter.norm(laid), drafter.lm_head.weight, teacher, weights, "kl").loss
        part = part * decay**step / len(supervised.queries)
        assert part.item() == pytest.approx(golden[f"loss_{step}_sum"], abs=TOLERANCE)
        total = total + part
    assert total.item() == pytest.approx(golden["loss"], abs=1e-4)
    names = [name for name, _ in drafter.named_parameters() if name != "lm_head.weight"]  # speculators freezes the head
    grads = torch.autograd.grad(total, [drafter.get_parameter(name) for name in names])
    norm = torch.stack([grad.norm() for grad in grads]).norm().item()
    assert norm == pytest.approx(golden["grad_norm"], rel=1e-4)
