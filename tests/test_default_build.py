"""The shipped default, built for real by `dvc repro` in a clean clone, must reach the promised quality."""

import pytest

from tests.workspace import Workspace, copy_of_repository, read

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = copy_of_repository(tmp_path_factory.mktemp("default") / "clone")
    workspace.repro()
    return workspace


def test_the_stand_in_target_learned(default: Workspace) -> None:
    shares = read(default, "target/metrics.json")["stand_in"]["heldout_ends_properly"]
    assert set(shares) == {"reasoning", "tools", "code"}
    assert min(shares.values()) >= 0.95


def test_ids_and_logprobs_give_the_true_ids_and_count_is_never_wrong_on_canonical_rows(default: Workspace) -> None:
    for name in ("reasoning", "tools", "code"):
        measured = read(default, f"{name}/calibration.json")
        rows = {**measured["by_evidence"], **measured["by_evidence_and_segmentation"]}
        for kind in ("ids", "logprobs", "count, canonical"):
            assert rows[kind]["exact"] == rows[kind]["rows"] > 0, f"{name}: {kind}"


def test_the_drafter_helps_and_the_anchors_hold(default: Workspace) -> None:
    result = read(default, "drafter/eval.json")
    assert result["draft_tokens"] == 4
    assert result["acceptance_length"] >= 2.0
    assert result["anchors"]["oracle"] == 5.0
    assert 1.0 <= result["anchors"]["untrained"] < 1.3
    assert result["identical_to_plain_greedy"] == result["prompts"] == 72


def test_the_default_gate_says_go_and_names_the_refused_provider(default: Workspace) -> None:
    for name in ("reasoning", "tools", "code"):
        assert read(default, f"{name}/audit/gate.json")["verdict"] == "go"
