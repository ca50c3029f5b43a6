"""The drafter's benchmarks are right and run without a GPU, and its guide names tests that exist."""

import re

import pytest
import torch

from benchmarks import drafter_gpu
from benchmarks.drafter_step import VARIANTS, make, stepper
from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def test_the_plain_step_and_ours_take_the_same_loss_and_end_with_the_same_weights() -> None:
    ended = {}
    for variant in VARIANTS:
        learner, pack = make(length=40, prompt=5, hidden=64, vocab=90, steps=4)
        said = torch.tensor([stepper(learner, pack, variant)() for _ in range(2)])
        ended[variant] = said, dict(learner.drafter.named_parameters())
    losses, weights = ended["ours"]
    for variant in VARIANTS[1:]:
        torch.testing.assert_close(ended[variant][0], losses, atol=1e-5, rtol=1e-5)
        for name, tensor in weights.items():
            # AdamW's first step is the gradient's sign: where it is all but zero, the order of sums decides
            different = (ended[variant][1][name] - tensor).abs() > 1e-5
            assert different.float().mean() < 0.01, f"{variant}: {name}"


def test_without_a_gpu_the_full_size_is_refused_in_one_line_and_the_small_one_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert drafter_gpu.main([]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    found = drafter_gpu.measure(drafter_gpu.SMALL, torch.device("cpu"))
    assert 0 < found["extraction"]["pass_share_by_cpu"] < 10
    assert found["training"]["tokens_per_step"] == 64
    assert 0 < found["training"]["loss"] < 10


def test_every_test_that_the_guide_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/drafter.md").read_text()))
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) >= 15
    assert not named - defined
