"""Loss masks: rules over segments, through hidden states, training and the exports."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.commands.export_data import main as export_data
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.sections import section_of
from pipeline.formats.hidden_states import HiddenStates
from pipeline.formats.loss_mask import RULES, LossMask, LossWeights, weights_of
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.weights.ends import open_ends
from pipeline.stages.train import stage
from pipeline.stages.train.config import TrainSection
from pipeline.stages.train.data import count_supervised, open_corpus
from pipeline.stages.train.learner import Learner
from tests.tiny import Build, random_rows, train_settings

pytestmark = pytest.mark.slow

KINDS = [
    "reasoning",
    "reasoning",
    "think_close",
    "content",
    "content",
    "tools_open",
    "call_open",
    "call_id",
    "call_args_open",
    "call_name",
    "call_args",
    "call_args",
    "call_close",
    "tools_close",
    "end",
]
PROMPT = 3


def rows_with_segments(count: int) -> list[dict[str, Any]]:
    rows = random_rows([(f"row-{number}", PROMPT, len(KINDS)) for number in range(count)])
    cuts = [0, *(place for place in range(1, len(KINDS)) if KINDS[place] != KINDS[place - 1]), len(KINDS)]
    segments = [{"kind": KINDS[start], "start": start, "end": end} for start, end in itertools.pairwise(cuts)]
    return [{**row, "segments": segments} for row in rows]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, kimi: TargetRecord) -> Build:
    build = Build(tmp_path_factory.mktemp("build"), kimi)
    build.extract(rows_with_segments(6), "a")
    return build


def supervised(build: Build, mask: Any) -> list[str]:
    weights = HiddenStates(build.hidden("a")).loss_weights(0, weights_of(mask))
    assert not weights[:PROMPT].any(), "a prompt is never trained on"
    return [kind for kind, weight in zip(KINDS, weights[PROMPT:], strict=True) if weight]


def test_completion_leaves_tool_sections_out_and_completion_with_tools_is_all_that_the_model_wrote(
    build: Build,
) -> None:
    assert supervised(build, "completion") == ["reasoning", "reasoning", "think_close", "content", "content", "end"]
    assert supervised(build, "completion+tools") == KINDS
    assert supervised(build, LossWeights(tools=1)) == [
        "tools_open",
        "call_open",
        "call_args_open",
        "call_close",
        "tools_close",
    ]


def test_weights_by_kind_are_the_tokens_weights_and_a_cut_row_keeps_those_of_what_is_left(
    build: Build, kimi: TargetRecord, tmp_path: Path
) -> None:
    weights = LossWeights(content=2, call_args=0.5)
    found = HiddenStates(build.hidden("a")).loss_weights(2, weights)
    assert found.tolist() == [0] * PROMPT + [{"content": 2, "call_args": 0.5}.get(kind, 0) for kind in KINDS]
    cut = Build(tmp_path, kimi)
    cut.extract(rows_with_segments(1), "a", max_length=8)
    assert HiddenStates(cut.hidden("a")).loss_weights(0, weights).tolist() == found[:8].tolist()


def gradient(build: Build, mask: Any, damage: list[str]) -> torch.Tensor:
    """Return the gradient of the loss with noise for the teacher's states at some tokens.

    These are the positions that judge the prediction after a token of these kinds.
    """
    settings = train_settings(loss_mask=mask)
    ends = open_ends(build.model)
    corpus = open_corpus(
        build.stamps, {"a": build.hidden("a")}, ["a"], ends.source.sha256, 0.0, weights_of(settings.loss_mask)
    )
    learner: Learner = stage._learner(settings, ends, corpus, "tiny")
    learner.drafter.used = torch.arange(
        len(learner.drafter.used)
    )  # or the mask would choose the draft vocabulary as well
    learner.head_rows = ends.head[learner.drafter.used]
    pack = corpus.packed(corpus.training[:2])
    hit = torch.tensor([kind in damage for _ in range(2) for kind in ["prompt"] * PROMPT + KINDS])
    pack.last[hit] = torch.randn(int(hit.sum()), pack.last.shape[1], generator=torch.Generator().manual_seed(1))
    learner.optimizer.zero_grad()
    from pipeline.drafter.unroll import plan_unroll

    learner.pack_loss(pack, plan_unroll(pack, settings.ttt_steps), torch.ones(settings.ttt_steps)).loss.backward()
    return torch.cat(
        [parameter.grad.flatten() for parameter in learner.drafter.parameters() if parameter.grad is not None]
    )


def test_a_mask_that_supervises_content_alone_takes_no_gradient_from_anything_else(build: Build) -> None:
    torch.manual_seed(0)
    others = sorted({*KINDS, "prompt"} - {"content"})
    only_content = gradient(build, {"content": 1}, [])
    assert only_content.any()
    assert torch.equal(gradient(build, {"content": 1}, others), only_content)
    assert not torch.equal(gradient(build, {"content": 1}, ["content"]), only_content)
    assert not torch.equal(gradient(build, "completion+tools", others), gradient(build, "completion+tools", []))
    torch.testing.assert_close(gradient(build, {"content": 3}, []), 3 * only_content)


def test_the_draft_vocabulary_is_chosen_from_what_is_supervised(build: Build) -> None:
    sha256 = open_ends(build.model).source.sha256
    corpus = open_corpus(build.stamps, {"a": build.hidden("a")}, ["a"], sha256, 0.0, LossWeights(call_id=1))
    assert count_supervised(corpus).sum() == 6


def test_rows_without_anything_supervised_are_left_out_and_none_left_is_an_error(build: Build) -> None:
    with pytest.raises(InputError, match=r"train\.loss_mask leaves out all"):
        open_corpus(
            build.stamps,
            {"a": build.hidden("a")},
            ["a"],
            open_ends(build.model).source.sha256,
            0.0,
            LossWeights(special=1),
        )


@pytest.mark.parametrize("rule", list(RULES))
def test_exports_write_the_mask(build: Build, tmp_path: Path, rule: str) -> None:
    arguments = [
        "--format",
        "specforge",
        "--out",
        str(tmp_path / "out"),
        "--model",
        str(build.model),
        "--data",
        str(build.hidden("a")),
        "--loss-mask",
        rule,
    ]
    export_data(arguments)
    mask = torch.load(tmp_path / "out" / "rows_0-2000" / "data_0.ckpt", weights_only=True)["loss_mask"]
    weights = weights_of(rule)  # type: ignore[arg-type]
    assert mask.tolist() == HiddenStates(build.hidden("a")).loss_weights(0, weights).tolist()


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("complete", "'completion' or 'completion"),
        ({"contents": 1}, "contents: no such key"),
        ({"content": -1}, "greater than or equal to 0"),
        ({"end": 0}, "nothing would be trained"),
    ],
)
def test_a_wrong_rule_is_named(mask: LossMask, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        section_of(TrainSection, {**train_settings().model_dump(), "loss_mask": mask})
