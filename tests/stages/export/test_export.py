"""The exported layouts: names, shapes and config keys as the engines' loaders need them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.core.errors import ArtifactError
from pipeline.core.files.digests import sha256_folder
from pipeline.core.files.json_file import read_json, write_json
from pipeline.core.files.tensors import load_tensors
from pipeline.drafter.checkpoint import assemble, save_drafter
from pipeline.drafter.unroll import plan_unroll, unroll
from pipeline.formats.schema.target import TargetRecord
from pipeline.stages.export import stage
from tests.stages.export.engine_loaders import EngineDrafter, load_as_sglang, load_as_vllm
from tests.tiny import VOCAB, random_drafter, random_pack

pytestmark = pytest.mark.slow

MEASURED: dict[str, Any] = {
    "draft_tokens": 4,
    "prompts": 3,
    "identical_to_plain_greedy": 3,
    "acceptance_length": 3.25,
    "tokens_per_round": 3.1,
    "per_position": [0.9, 0.7, 0.4, 0.25],
    "anchors": {"oracle": 5.0, "untrained": 1.0},
    "offline_estimate": {"acceptance_length": 3.4},
    "datasets": {
        "code": {
            "prompts": 3,
            "acceptance_length": 3.25,
            "tokens_per_round": 3.1,
            "per_position": [0.9, 0.7, 0.4, 0.25],
        }
    },
}

SHAPES = {
    "fc.weight": [32, 96],
    "midlayer.input_layernorm.weight": [32],
    "midlayer.hidden_norm.weight": [32],
    "midlayer.self_attn.q_proj.weight": [32, 64],
    "midlayer.self_attn.k_proj.weight": [16, 64],
    "midlayer.self_attn.v_proj.weight": [16, 64],
    "midlayer.self_attn.o_proj.weight": [32, 32],
    "midlayer.post_attention_layernorm.weight": [32],
    "midlayer.mlp.gate_proj.weight": [48, 32],
    "midlayer.mlp.up_proj.weight": [48, 32],
    "midlayer.mlp.down_proj.weight": [32, 48],
    "norm.weight": [32],
    "lm_head.weight": [50, 32],
    "d2t": [50],
    "t2d": [VOCAB],
}
"""Shapes of `LlamaForCausalLMEagle3`: H 32, target 32, 4 heads of 8, 2 key heads, MLP 48, vocabulary 50."""


def run(folder: Path, kimi: TargetRecord, report: Any = MEASURED) -> Path:
    """Export the checkpoint in ``folder``."""
    write_json(folder / "fingerprint.json", kimi)
    write_json(folder / "eval.json", report)
    stage.run(
        stage.Config(),
        checkpoint=folder / "checkpoint",
        eval=folder / "eval.json",
        record=folder / "fingerprint.json",
        export=folder / "export",
    )
    return folder / "export"


def export(folder: Path, kimi: TargetRecord, **changes: Any) -> Path:
    drafter = random_drafter(**changes)
    save_drafter(folder / "checkpoint", drafter.config, drafter.state_dict())
    return run(folder, kimi)


def without(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in tensors.items() if key != name}


def test_sglang_gets_the_names_and_shapes_that_its_loader_does_not_skip(tmp_path: Path, kimi: TargetRecord) -> None:
    tensors = load_tensors(export(tmp_path, kimi) / "sglang" / "model.safetensors")
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == SHAPES
    assert tensors["d2t"].dtype == torch.int64
    assert tensors["t2d"].dtype == torch.bool
    assert torch.equal(tensors["t2d"].nonzero().flatten(), tensors["d2t"] + torch.arange(50))


def test_vllm_gets_the_same_tensors_by_speculators_names(tmp_path: Path, kimi: TargetRecord) -> None:
    out = export(tmp_path, kimi)
    ours, theirs = (load_tensors(out / engine / "model.safetensors") for engine in ("sglang", "vllm"))
    assert {name.replace("midlayer.", "layers.0.") for name in SHAPES} == set(theirs)
    for name, tensor in ours.items():
        assert torch.equal(theirs[name.replace("midlayer.", "layers.0.")], tensor)


@pytest.mark.parametrize(("engine", "load"), [("sglang", load_as_sglang), ("vllm", load_as_vllm)])
def test_an_engine_fills_every_parameter_skips_nothing_but_t2d_and_computes_our_logits(
    tmp_path: Path, kimi: TargetRecord, engine: str, load: Callable[[Path], EngineDrafter]
) -> None:
    """Automodel 2447, verl-SpeCo 67, SpecForge 534 and 76: engines skip unknown names, and read d2t as offsets."""
    drafter, pack = random_drafter(), random_pack([(5, 6)])
    loaded = load(export(tmp_path, kimi) / engine)
    assert loaded.skipped == ["t2d"]
    assert not [name for name, tensor in loaded.parameters.items() if tensor.isnan().any()]
    assert loaded.hot_ids is not None
    assert torch.equal(loaded.hot_ids, drafter.to_target_ids(torch.arange(50)))
    hidden = next(unroll(drafter, pack.aux, plan_unroll(pack, 1, every_row=True)))
    torch.testing.assert_close(
        loaded.logits(pack.aux[:-1], drafter.embed(pack.token_ids[1:])), drafter.logits(hidden), atol=2e-5, rtol=1e-5
    )


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_export_comes_back_with_equal_logits(tmp_path: Path, kimi: TargetRecord, engine: str) -> None:
    drafter, pack = random_drafter(), random_pack([(5, 6)])
    tensors = load_tensors(export(tmp_path, kimi) / engine / "model.safetensors")
    back = assemble(
        drafter.config,
        {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()},
        drafter.embedding,
        engine,
    )
    plan = plan_unroll(pack, 3, every_row=True)
    for mine, theirs in zip(unroll(drafter, pack.aux, plan), unroll(back, pack.aux, plan), strict=True):
        assert torch.equal(drafter.logits(mine), back.logits(theirs))


def test_sglangs_config_has_what_its_class_reads_and_leaves_default_layers_to_the_engine(
    tmp_path: Path, kimi: TargetRecord
) -> None:
    config = read_json(export(tmp_path, kimi) / "sglang" / "config.json")
    expected = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "draft_vocab_size": 50,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "eos_token_id": 163586,
    }
    assert expected.items() <= config.items()
    assert "eagle_aux_hidden_state_layer_ids" not in config
    assert "eagle_config" not in config


def test_other_layers_than_the_default_are_written_in_both_places(tmp_path: Path, kimi: TargetRecord) -> None:
    """vLLM 50170: without them the engine falls back silently, and acceptance to 1.2 %."""
    out = export(tmp_path, kimi, layer_ids=[1, 4, 8])
    config = read_json(out / "sglang" / "config.json")
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 4, 8]
    assert config["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [1, 4, 8], "use_aux_hidden_state": True}
    assert read_json(out / "vllm" / "config.json")["eagle_aux_hidden_state_layer_ids"] == [1, 4, 8]


def test_speculators_config_has_all_norm_flags_false_and_the_verifier(tmp_path: Path, kimi: TargetRecord) -> None:
    config = read_json(export(tmp_path, kimi) / "vllm" / "config.json")
    assert [config[flag] for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")] == [
        False
    ] * 4
    assert config["architectures"] == ["Eagle3DraftModel"]
    assert config["speculators_model_type"] == "eagle3"
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert config["transformer_layer_config"]["num_hidden_layers"] == 1
    assert config["speculators_config"]["verifier"] == {
        "name_or_path": kimi.model,
        "architectures": ["LlamaForCausalLM"],
    }
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 4


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_rotary_embedding_is_written_in_the_old_form_and_the_new(
    tmp_path: Path, kimi: TargetRecord, engine: str
) -> None:
    """SpecForge 270 and 742, speculators 574: a theta ignored, a scaling dropped."""
    yarn = {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 64.0, "original_max_position_embeddings": 4096}
    config = read_json(export(tmp_path, kimi, rope_parameters=yarn) / engine / "config.json")
    llama = config if engine == "sglang" else config["transformer_layer_config"]
    assert llama["rope_parameters"] == yarn
    assert llama["rope_theta"] == 50000.0
    assert llama["rope_scaling"] == {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 4096,
    }
    plain = read_json(export(tmp_path / "plain", kimi) / engine / "config.json")
    llama = plain if engine == "sglang" else plain["transformer_layer_config"]
    assert (llama["rope_theta"], llama["rope_scaling"]) == (10000.0, None)


def test_the_card_traces_data_and_settings_and_says_which_algorithm_to_name(tmp_path: Path, kimi: TargetRecord) -> None:
    """sglang 21272: `EAGLE` with an EAGLE-3 draft skips fc, and the accept length is exactly 1.0."""
    card = (export(tmp_path, kimi) / "README.md").read_text()
    assert "--speculative-algorithm EAGLE3 " in card
    assert "d" * 64 in card
    assert "| all | 3 | 3.250 | 3.100 | 0.900, 0.700, 0.400, 0.250 |" in card
    assert kimi.tokenizer_sha256 in card


def test_equal_checkpoints_give_equal_bytes(tmp_path: Path, kimi: TargetRecord) -> None:
    assert sha256_folder(export(tmp_path / "a", kimi)) == sha256_folder(export(tmp_path / "b", kimi))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: {**tensors, "d2t": tensors["t2d"].nonzero().flatten()}, ".*d2t must hold offsets"),
        (lambda tensors: without(tensors, "t2d"), r"lacks \['t2d'\]"),
        (
            lambda tensors: without(tensors, "midlayer.mlp.up_proj.weight"),
            r"does not fit its config.json: midlayer.mlp.up_proj.weight: file None, config \[48, 32\]",
        ),
        (
            lambda tensors: {**tensors, "fc.weight": torch.zeros(32, 64)},
            r"does not fit its config.json: fc.weight: file \[32, 64\], config \[32, 96\]",
        ),
        (
            lambda tensors: {**tensors, "norm.weight": tensors["norm.weight"] / 0},
            "norm.weight is torch.float32, and must hold finite floating-point numbers",
        ),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_not_exported(
    tmp_path: Path, kimi: TargetRecord, change: Any, said: str
) -> None:
    drafter = random_drafter()
    save_drafter(tmp_path / "checkpoint", drafter.config, change(drafter.state_dict()))
    with pytest.raises(ArtifactError, match=rf"model.safetensors: {said}"):
        run(tmp_path, kimi)
    assert not (tmp_path / "export").exists()


def test_a_checkpoint_of_no_known_dtype_is_not_exported(tmp_path: Path, kimi: TargetRecord) -> None:
    drafter = random_drafter(training={"dtype": "float8"})
    save_drafter(tmp_path / "checkpoint", drafter.config, drafter.state_dict())
    with pytest.raises(ArtifactError, match=r"config.json: training.dtype is 'float8'; one of \['bfloat16', "):
        run(tmp_path, kimi)


@pytest.mark.parametrize(
    "report",
    [
        {},
        [],
        {**MEASURED, "draft_tokens": 0},
        {**MEASURED, "datasets": []},
        {**MEASURED, "acceptance_length": "long"},
        {k: v for k, v in MEASURED.items() if k != "anchors"},
    ],
)
def test_a_report_that_is_not_whole_is_named(tmp_path: Path, kimi: TargetRecord, report: Any) -> None:
    drafter = random_drafter()
    save_drafter(tmp_path / "checkpoint", drafter.config, drafter.state_dict())
    with pytest.raises(ArtifactError, match=r"eval.json: is not a whole report of an evaluation"):
        run(tmp_path, kimi, report)
