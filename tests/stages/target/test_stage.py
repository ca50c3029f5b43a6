"""The target stage: its files, equal bytes in two runs, and a wrong map that stops it before it writes anything."""

import json
from pathlib import Path

import pytest
import torch

from pipeline.core.errors import ConfigError, TokenizerError
from pipeline.core.files.digests import sha256_folder
from pipeline.core.files.json_file import read_model
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.rendering import PromptRenderer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.compose import target_section
from pipeline.stages.target.config import TargetSection
from pipeline.stages.target.stage import Config, run
from pipeline.standin.corpus.streams import KINDS, heldout
from pipeline.standin.training.answer_markers import AnswerMarkers
from pipeline.standin.training.examples import OTHER_SEGMENTATION, to_example, training_examples
from pipeline.standin.training.form_check import form_fault, greedy_answers
from tests.stand_in import StandIn, make_stand_in

pytestmark = pytest.mark.slow


def run_in(folder: Path, section: TargetSection) -> Path:
    run(
        Config(target=section),
        record=folder / "fingerprint.json",
        model=folder / "model",
        metrics=folder / "metrics.json",
    )
    return folder


def test_two_runs_write_the_same_bytes(stand_in: StandIn, tmp_path: Path) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    again = make_stand_in(tmp_path)
    assert torch.are_deterministic_algorithms_enabled() == before
    assert sha256_folder(again.model) == sha256_folder(stand_in.model)
    assert again.metrics.read_bytes() == stand_in.metrics.read_bytes()
    assert again.record.read_bytes() == stand_in.record.read_bytes()


def test_the_checkpoint_is_a_llama_of_transformers_with_a_row_for_every_id(stand_in: StandIn) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(stand_in.model)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.get_input_embeddings().weight.shape[0] == model.get_output_embeddings().weight.shape[0] == 163_840
    assert model.generation_config.eos_token_id == 163_586


def test_the_metrics_say_what_was_measured(stand_in: StandIn) -> None:
    measured = json.loads(stand_in.metrics.read_text())
    made = measured["stand_in"]
    assert set(made["heldout_ends_properly"]) == set(KINDS)
    for kind, share in made["heldout_ends_properly"].items():
        assert share == round(1 - len(made["heldout_faults"][kind]) / made["heldout_prompts"][kind], 4)
    assert made["training_tokens"] >= 20_000


def test_a_real_target_gets_its_name_written_down_and_nothing_is_trained(tmp_path: Path) -> None:
    section = target_section("kimi_k25").model_copy(update={"revision": "abc"})
    folder = run_in(tmp_path, section)
    assert json.loads((folder / "model" / "target.json").read_text()) == {
        "model": "moonshotai/Kimi-K2.5",
        "revision": "abc",
        "trust_remote_code": False,
    }
    assert read_model(folder / "fingerprint.json", TargetRecord).role_id("end") == 163_586
    assert "stand_in" not in json.loads((folder / "metrics.json").read_text())


def test_a_wrong_map_stops_the_stage_before_anything_is_written(tmp_path: Path) -> None:
    section = target_section("tiny_kimi")
    wrong = section.model_copy(update={"special_tokens": {**section.special_tokens, "<|im_end|>": 163_533}})
    with pytest.raises(TokenizerError, match="it is the ordinary text 'chas'"):
        run_in(tmp_path, wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_stand_in_in_a_format_without_tool_sections_is_refused(tmp_path: Path) -> None:
    tiny = target_section("tiny_kimi").tiny
    with pytest.raises(ConfigError, match=r"qwen3.*needs target\.roles \['tools_open'"):
        run_in(tmp_path, target_section("qwen3").model_copy(update={"tiny": tiny}))
    assert list(tmp_path.iterdir()) == []


def test_some_training_answers_spell_the_same_text_with_other_ids(kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    examples = training_examples(kimi, tokenizer, 60_000)
    specials = set(tokenizer.special_texts)
    other = 0
    for example in examples:
        segments: list[list[int]] = [[]]
        for token in example.answer:
            if token in specials:
                segments.append([])
            else:
                segments[-1].append(token)
        other += any(tokenizer.encode(tokenizer.decode_bytes(segment).decode()) != segment for segment in segments)
    assert abs(other / len(examples) - OTHER_SEGMENTATION) < 0.04


def test_more_tokens_than_the_corpus_has_are_refused(
    kimi: TargetRecord, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.standin.training.examples.training", lambda kind: iter(heldout(kind)))
    with pytest.raises(ConfigError, match=r"target\.tiny\.tokens is 1000000; the corpus has no more than \d{4}"):
        training_examples(kimi, tokenizer, 1_000_000)


@pytest.mark.parametrize("kind", KINDS)
def test_the_corpus_own_answers_have_no_fault(kimi: TargetRecord, tokenizer: Tokenizer, kind: str) -> None:
    marks, renderer = AnswerMarkers.of(kimi), PromptRenderer(kimi, tokenizer)
    for talk in heldout(kind):
        assert form_fault(marks, tokenizer, to_example(kimi, tokenizer, renderer, talk).answer, len(talk.calls)) is None


def test_every_fault_of_an_answer_is_seen(kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    marks = AnswerMarkers.of(kimi)
    text, good = (
        tokenizer.encode("x"),
        [
            marks.call_open,
            *tokenizer.encode("functions.f:0"),
            marks.call_args,
            *tokenizer.encode("{}"),
            marks.call_close,
        ],
    )

    def section(*calls: list[int]) -> list[int]:
        return [
            marks.think_close,
            marks.tools_open,
            *(token for call in calls for token in call),
            marks.tools_close,
            marks.end,
        ]

    assert form_fault(marks, tokenizer, section(good), 1) is None
    cases = [
        (text, 0, "no end token"),
        ([], 0, "no end token"),
        ([*text, marks.end], 0, "0 think-closes"),
        ([marks.think_close, marks.think_close, marks.end], 0, "2 think-closes"),
        (section(good), 0, "a special token in the text"),
        ([marks.think_close, *text, marks.end], 1, "no whole tool section"),
        ([*section(good)[:-2], marks.end], 1, "no whole tool section"),
        (section(good, good), 1, "2 calls where 1 were asked for"),
        (section(good[1:]), 1, "not opened"),
        (section([token for token in good if token != marks.call_args]), 1, "without arguments"),
        (section([good[0], *text, *good[good.index(marks.call_args) :]]), 1, "a call named b'x'"),
        (section([*good[: good.index(marks.call_args) + 1], *text, marks.call_close]), 1, "not JSON"),
        (
            section([*good[: good.index(marks.call_args) + 1], *tokenizer.encode("[1]"), marks.call_close]),
            1,
            "not an object",
        ),
    ]
    for ids, calls, why in cases:
        assert why in (form_fault(marks, tokenizer, ids, calls) or "no fault"), why


def test_greedy_answers_do_not_depend_on_which_prompts_share_the_batch(
    stand_in: StandIn, kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    from pipeline.standin.model.live_vocabulary import compact
    from pipeline.standin.model.llama import load_checkpoint

    model, live = compact(load_checkpoint(stand_in.model))
    renderer = PromptRenderer(kimi, tokenizer)
    prompts = [renderer.render(talk.messages, talk.tools) for kind in KINDS for talk in heldout(kind)[:12]]
    together = greedy_answers(model.to(torch.float64), live, prompts, 163_586)
    assert together[::7] == [
        greedy_answers(model.to(torch.float64), live, [prompt], 163_586)[0] for prompt in prompts[::7]
    ]
