"""The extract stage against transformers' own hidden states."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch
import transformers

from pipeline.core.errors import AerieError, ArtifactError, ConfigError, InputError
from pipeline.core.files.digests import sha256_folder
from pipeline.core.files.json_file import read_json, read_model, write_json
from pipeline.core.files.tensors import load_tensors, save_tensors
from pipeline.formats.hidden_states import HiddenStates
from pipeline.formats.loss_mask import weights_of
from pipeline.formats.schema.hidden import Manifest, Stamp
from pipeline.formats.schema.target import TargetRecord
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.model.weights.ends import open_ends
from pipeline.model.weights.source import find_source
from pipeline.model.weights.target import Target, capturing, open_model, open_shape
from pipeline.stages.extract import stage
from pipeline.stages.extract.forward import can_pack, check_teacher, pack_attention, states
from pipeline.stages.extract.local import LocalBackend
from pipeline.stages.extract.plan import InputRow, ShardPlan, select
from pipeline.stages.extract.writer import ShardWriter
from tests.conftest import ROOT
from tests.polling import wait_until
from tests.tiny import LAYERS, ROWS, VOCAB, WIDTH, Build, extract_settings, random_rows, save_target

pytestmark = pytest.mark.slow

CLOSE: dict[str, Any] = {"atol": 3e-4, "rtol": 1e-4}
"""Tolerance of states as large as tens: a batch's size changes the order of sums, and so their last bits."""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, kimi: TargetRecord) -> Build:
    return Build(tmp_path_factory.mktemp("build"), kimi)


@pytest.fixture(scope="module")
def stored(build: Build) -> HiddenStates:
    return HiddenStates(build.extract(random_rows(ROWS)))


def reference(build: Build, token_ids: torch.Tensor) -> Any:
    with torch.inference_mode():
        return open_model(build.model, dtype="float32", device="cpu").model(token_ids[None], output_hidden_states=True)


def test_stored_states_are_the_layers_inputs_as_transformers_numbers_them(build: Build, stored: HiddenStates) -> None:
    for row in stored:  # type: ignore[attr-defined]
        hidden = reference(build, row.token_ids).hidden_states
        torch.testing.assert_close(row.aux, torch.cat([hidden[k][0] for k in (2, 4, 5)], -1), **CLOSE)


def test_the_head_on_the_normed_last_state_is_the_models_own_logits_so_the_teacher_is_on_the_right_side_of_the_norm(
    build: Build, stored: HiddenStates
) -> None:
    target = open_model(build.model, dtype="float32", device="cpu")
    row = stored[0]
    logits = reference(build, row.token_ids).logits[0]
    torch.testing.assert_close(target.head(target.norm(row.last)), logits, **CLOSE)
    assert (
        target.head(row.last).argmax(-1) == logits.argmax(-1)
    ).float().mean() < 0.99  # the wrong side would be noticed
    assert (target.head(target.norm(target.norm(row.last))).sub(logits)).abs().max() > 0.01


def test_a_layer_id_names_a_layers_input_and_not_its_output() -> None:
    """Case H01: five layers, layer k adds k + 1, the embedding is 0: inputs of layers 1, 2, 4 are 1, 3, 10."""

    class Adds(torch.nn.Module):
        def __init__(self, amount: int) -> None:
            super().__init__()
            self.amount = amount

        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return hidden_states + self.amount

    toy: Any = SimpleNamespace(num_layers=5, layers=[Adds(k + 1) for k in range(5)], norm=torch.nn.Identity())
    with capturing(toy, [1, 2, 4]) as caught:
        state = torch.zeros(1, 4)
        for layer in toy.layers:
            state = layer(hidden_states=state)
        toy.norm(state)
    assert {number: value[0, 0].item() for number, value in caught.items()} == {1: 1, 2: 3, 4: 10, 5: 15}


def test_one_row_alone_many_together_and_a_repeated_call_give_the_same_states(build: Build) -> None:
    target = open_model(build.model, dtype="float32", device="cpu")
    rows = [torch.tensor(row["prompt_ids"] + row["completion_ids"], dtype=torch.int32) for row in random_rows(ROWS)]
    for packed in (False, True):
        if packed:
            pack_attention(target)
        together = states(target, [2, 4, 5], rows, packed=packed)
        again = states(target, [2, 4, 5], rows, packed=packed)
        alone = [states(target, [2, 4, 5], [row], packed=packed) for row in rows]
        for part in (0, 1):
            assert torch.equal(together[part], again[part])
            torch.testing.assert_close(together[part], torch.cat([single[part] for single in alone]), **CLOSE)


def test_rows_are_found_by_id_in_the_order_of_the_input_with_their_own_ids_and_prompt_length(
    stored: HiddenStates,
) -> None:
    assert [row.id for row in stored.index] == [name for name, _, _ in ROWS]
    for number, raw in enumerate(random_rows(ROWS)):
        row = stored[stored.by_id[raw["id"]]]
        assert row.token_ids.tolist() == raw["prompt_ids"] + raw["completion_ids"]
        assert row.prompt_length == len(raw["prompt_ids"])
        assert stored.loss_weights(number, weights_of("completion+tools")).tolist() == [0] * len(raw["prompt_ids"]) + [
            1
        ] * len(raw["completion_ids"])
        assert stored.token_ids(number).tolist() == row.token_ids.tolist()


def test_the_manifest_names_convention_layers_and_modules_and_the_stamp_counts(
    build: Build, stored: HiddenStates
) -> None:
    assert stored.manifest == Manifest(
        layer_ids=[2, 4, 5],
        layer_names=["model.layers.2", "model.layers.4", "model.layers.5"],
        norm_name="model.norm",
        num_layers=LAYERS,
        hidden_size=WIDTH,
        dtype="float32",
        vocab_size=VOCAB,
        target_sha256=find_source(build.model).sha256,
        backend="transformers",
        engine=f"transformers {transformers.__version__}",
    )
    stamp = read_model(build.stamps / "data.json", Stamp)
    supervised = sum(completion for _, _, completion in ROWS)
    assert (stamp.rows, stamp.tokens, stamp.supervised_tokens) == (
        len(ROWS),
        sum(p + c for _, p, c in ROWS),
        supervised,
    )
    assert stamp.sha256 == sha256_folder(build.hidden())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_narrow_storage_keeps_states_within_its_rounding(build: Build, stored: HiddenStates, dtype: str) -> None:
    narrow = HiddenStates(build.extract(random_rows(ROWS), f"as_{dtype}", dtype=dtype))
    bound = {"bfloat16": 2**-8, "float16": 2**-11, "float8_e4m3fn": 2**-4}[dtype]
    for number in range(len(ROWS)):
        for name in ("aux", "last"):
            exact, found = getattr(stored[number], name), getattr(narrow[number], name).float()
            scale = exact.abs().amax(-1, keepdim=True)
            assert ((found - exact).abs() <= bound * exact.abs() + scale * 2**-9 + 1e-7).all()


def test_equal_inputs_give_equal_bytes_and_other_batches_only_other_places(build: Build, stored: HiddenStates) -> None:
    first = sha256_folder(build.hidden())
    again = build.extract(random_rows(ROWS), "again")
    assert sha256_folder(again) == first
    assert not again.with_name(".hidden.partial").exists()
    small = HiddenStates(build.extract(random_rows(ROWS), "small", tokens_per_batch=1, shard_bytes=1024))
    assert len({row.shard for row in small.index}) == len(ROWS)
    for number in range(len(ROWS)):
        torch.testing.assert_close(small[number].aux, stored[number].aux, **CLOSE)


def test_a_killed_run_goes_on_where_it_was_and_ends_with_the_same_bytes(build: Build, tmp_path: Path) -> None:
    rows = random_rows([(f"row-{number}", 20, 400) for number in range(24)])
    settings: dict[str, Any] = {"tokens_per_batch": 420, "shard_bytes": 60_000}
    whole = sha256_folder(build.extract(rows, "whole", **settings))
    partial = build.hidden("killed").with_name(".hidden.partial")
    script = (
        "import sys, time; from pathlib import Path; from pipeline.stages.extract import stage; from "
        "pipeline.stages.extract.local import LocalBackend\n"
        "from tests.tiny import extract_settings\n"
        "b, settings, partial, compute = Path(sys.argv[1]), eval(sys.argv[2]), Path(sys.argv[3]), LocalBackend.states\n"
        "def ends_by_a_kill_only(backend, batches):\n"
        "    for states in compute(backend, batches):\n"
        "        yield states\n"
        "        while len(list(partial.glob('shard-*'))) >= 20: time.sleep(0.1)\n"
        "LocalBackend.states = ends_by_a_kill_only\n"
        "stage.run(stage.Config(extract=extract_settings(**settings)), accepted=b/'whole/accepted.parquet', "
        "verdict=b/'gate.json', record=b/'fingerprint.json',\n"
        "          model=b/'model', hidden=b/'killed/hidden', stamp=b/'extracted/killed.json')\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script, str(build.folder), repr(settings), str(partial)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    wait_until(lambda: run.poll() is not None or len(list(partial.glob("shard-*"))) >= 3)
    os.kill(run.pid, signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert not build.hidden("killed").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in partial.glob("shard-*")}
    assert len(kept) >= 3
    resumed = build.extract(rows, "killed", **settings)
    assert sha256_folder(resumed) == whole
    assert {name: (resumed / name).stat().st_mtime_ns for name in kept} == kept  # not computed again


def test_a_file_that_a_killed_run_had_begun_is_no_part_of_the_artifact(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    rows = random_rows(ROWS)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("pipeline.stages.extract.stage.write_batches", killed)
        build.extract(rows, "begun")
    (build.hidden("begun").with_name(".hidden.partial") / ".shard-00000.safetensors.1.partial").write_bytes(b"half")
    assert sha256_folder(build.extract(rows, "begun")) == sha256_folder(build.extract(rows, "begun whole"))


@pytest.mark.parametrize("change", ["rows", "settings", "weights"])
def test_partial_work_for_anything_else_is_not_taken_up(tmp_path: Path, kimi: TargetRecord, change: str) -> None:
    build = Build(tmp_path, kimi)
    rows = random_rows(ROWS)
    done = build.extract(rows)
    partial = build.hidden("next").with_name(".hidden.partial")
    partial.mkdir(parents=True)
    for path in done.glob("shard-*"):
        (partial / path.name).write_bytes(path.read_bytes())
    (partial / "key.json").write_text('{"key": "of another build"}')
    settings: dict[str, Any] = {"layers": [1, 2, 3]} if change == "settings" else {}
    if change == "weights":
        save_target(build.model, seed=1)
    if change == "rows":
        rows = random_rows(ROWS, seed=1)
    expected = sha256_folder(build.extract(rows, "fresh", **settings))
    assert sha256_folder(build.extract(rows, "next", **settings)) == expected


def test_half_made_work_is_taken_up_by_the_same_code_only(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    def watched(backend: LocalBackend, batches: Any) -> Any:
        for batch in batches:
            asked.append(batch)
            yield from compute(backend, [batch])

    rows = random_rows(ROWS)
    compute, asked = LocalBackend.states, list[Any]()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("pipeline.stages.extract.stage.write_batches", killed)
        build.extract(rows, "by code")
    partial = build.hidden("by code").with_name(".hidden.partial")
    copied = shutil.copytree(partial, build.hidden("by new code").with_name(".hidden.partial"))
    assert list(copied.glob("shard-*"))
    monkeypatch.setattr(LocalBackend, "states", watched)
    build.extract(rows, "by code")
    assert not asked
    monkeypatch.setattr("pipeline.stages.extract.stage.code_digest", lambda stage, notes: b"of edited code")
    build.extract(rows, "by new code")
    assert asked


def test_weights_of_another_vocabulary_than_the_target_record_are_refused(
    build: Build, kimi: TargetRecord, tmp_path: Path
) -> None:
    other = Build(tmp_path, kimi)
    save_target(other.model, vocab_size=301)
    with pytest.raises(InputError, match=r"vocabulary of 301; .* has 300"):
        other.extract(random_rows(ROWS))


def test_a_folder_without_weights_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(AerieError, match=r"neither config.json \(a checkpoint\) nor target.json"):
        find_source(tmp_path)
    (tmp_path / "target.json").write_text('{"model": "moonshotai/Kimi-K2.5", "revision": null}')
    with pytest.raises(AerieError, match=r"target\.revision is null"):
        find_source(tmp_path)


def test_no_accepted_row_gives_an_empty_index_and_a_stamp_of_zero(build: Build) -> None:
    assert len(HiddenStates(build.extract([], "empty"))) == 0
    assert read_json(build.stamps / "empty.json")["rows"] == 0


def families() -> dict[str, Any]:
    import transformers as t

    common: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
    }
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    vision = t.CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=8,
        patch_size=4,
        projection_dim=16,
    )
    text = t.LlamaConfig(**common)
    return {
        "dense with windows": (t.MistralForCausalLM, t.MistralConfig(**common, sliding_window=8)),
        "dense": (t.Qwen3ForCausalLM, t.Qwen3Config(**common, head_dim=8)),
        "mixture of experts": (t.Qwen3MoeForCausalLM, t.Qwen3MoeConfig(**common, **experts)),
        "another head's name": (
            t.GPTNeoXForCausalLM,
            t.GPTNeoXConfig(**{name: size for name, size in common.items() if name != "num_key_value_heads"}),
        ),
        "multimodal": (
            t.LlavaForConditionalGeneration,
            t.LlavaConfig(vision_config=vision, text_config=text, image_token_index=VOCAB - 1),
        ),
    }


@pytest.mark.parametrize(
    "family", ["dense with windows", "dense", "another head's name", "mixture of experts", "multimodal"]
)
def test_each_architecture_gives_the_states_that_transformers_gives(tmp_path: Path, family: str) -> None:
    kind, config = families()[family]
    torch.manual_seed(0)
    kind(config).save_pretrained(tmp_path)
    target = open_model(tmp_path, dtype="float32", device="cpu")
    rows = [
        torch.tensor(row["prompt_ids"] + row["completion_ids"], dtype=torch.int32)
        for row in random_rows(ROWS, VOCAB - 1)
    ]
    with torch.inference_mode():
        expected = [target.model(row.long()[None], output_hidden_states=True).hidden_states for row in rows]
    packed = can_pack(target)
    assert packed == (family != "dense with windows")
    if packed:
        pack_attention(target)
    aux, _ = states(target, [2, 3, 4], rows, packed=packed)
    wanted = torch.cat([torch.cat([hidden[k][0] for k in (2, 3, 4)], -1) for hidden in expected])
    torch.testing.assert_close(aux, wanted, atol=1e-4, rtol=1e-4)
    check_teacher(target, [2, 3, 4], rows[0], packed=packed)
    ends, shape = open_ends(tmp_path), open_shape(find_source(tmp_path))
    assert torch.equal(ends.head, target.head.weight)
    assert torch.equal(ends.teacher_hidden(aux[:, :32]), target.norm(aux[:, :32]))
    assert (shape.layer_names, shape.norm_name, shape.vocab_size, shape.hidden_size) == (
        target.layer_names,
        target.norm_name,
        VOCAB,
        32,
    )


def test_a_model_that_is_spread_over_devices_gives_the_same_states(build: Build, stored: HiddenStates) -> None:
    spread = HiddenStates(build.extract(random_rows(ROWS), "spread", device="auto"))
    assert all(torch.equal(spread[number].aux, stored[number].aux) for number in range(len(ROWS)))


def test_a_device_that_is_not_here_is_named(build: Build) -> None:
    with pytest.raises(ConfigError, match=r"device 'cuda:7' cannot be used here"):
        build.extract(random_rows(ROWS), "nowhere", device="cuda:7")


def test_a_target_whose_logits_are_not_the_head_of_the_normed_state_is_refused(tmp_path: Path) -> None:
    import transformers as t

    torch.manual_seed(0)
    config = t.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    model = t.LlamaForCausalLM(config)
    model.lm_head.register_forward_hook(lambda _module, _args, out: 30 * torch.tanh(out / 30 * 4))
    target = Target(model, find_source(save_target(tmp_path)))
    with pytest.raises(InputError, match="scales or caps its logits"):
        model.lm_head.register_forward_pre_hook(lambda _module, args: (args[0] * torch.rand_like(args[0]),))
        check_teacher(target, [2, 3, 4], torch.arange(40), packed=False)


def test_a_head_that_a_drafter_cannot_have_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    model = families()["dense"][0](families()["dense"][1])
    source = find_source(save_target(tmp_path))
    model.lm_head = torch.nn.Linear(32, VOCAB)
    with pytest.raises(
        InputError,
        match=r"the output head of Qwen3ForCausalLM \(Linear\) has a bias, and no engine gives a drafter's head one",
    ):
        Target(model, source)
    model.lm_head = torch.nn.Identity()
    with pytest.raises(
        InputError,
        match=r"no output head in Qwen3ForCausalLM: its get_output_embeddings\(\) gives Identity, "
        r".* it has \['model', 'lm_head'\]",
    ):
        Target(model, source)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"])
def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = save_target(tmp_path / "model")
    tensors = load_tensors(folder / "model.safetensors")
    tensors[name].view(-1)[3] = torch.nan
    save_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    with pytest.raises(ArtifactError, match=rf"model.safetensors: {name} has values that are not finite"):
        open_ends(folder)
    if name == "lm_head.weight":  # what extraction stores would be right, and what training makes of it wrong
        with pytest.raises(InputError, match=r"the model's own logits are not finite at 40 of 40 positions"):
            check_teacher(open_model(folder, dtype="float32", device="cpu"), [2, 3, 4], torch.arange(40), packed=False)


def test_a_checkpoint_without_some_weights_or_with_others_is_refused_and_never_filled_at_random(tmp_path: Path) -> None:
    folder = save_target(tmp_path)
    tensors = load_tensors(folder / "model.safetensors")
    save_tensors(
        folder / "model.safetensors",
        {name: tensor for name, tensor in tensors.items() if ".3.mlp" not in name},
        {"format": "pt"},
    )
    with pytest.raises(
        ArtifactError, match=r"lacks 3 weights that its config.json needs, first model.layers.3.mlp.down_proj.weight, "
    ):
        open_model(folder, dtype="float32", device="cpu")
    write_json(folder / "config.json", {**read_json(folder / "config.json"), "hidden_size": 40})
    with pytest.raises(ArtifactError, match="transformers cannot load this model"):
        open_model(folder, dtype="float32", device="cpu")
    with pytest.raises(
        ArtifactError,
        match=r"model.embed_tokens.weight has shape \[300, 32\], and \[300, 40\] by the target's config.json",
    ):
        open_ends(folder)


def test_a_file_that_the_checkpoints_index_names_and_is_not_there_is_named(tmp_path: Path) -> None:
    folder = save_target(tmp_path)
    names = load_tensors(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    write_json(folder / "model.safetensors.index.json", {"weight_map": dict.fromkeys(names, "part.safetensors")})
    with pytest.raises(ArtifactError, match=r"index.json names part.safetensors, which does not exist"):
        open_ends(folder)
    write_json(folder / "model.safetensors.index.json", {})
    with pytest.raises(ArtifactError, match=r"index.json: has no weight_map"):
        open_ends(folder)


@pytest.mark.parametrize(
    ("most", "on_long", "said"),
    [
        (9, "cut", "extract: 4 of 6 accepted rows; 2 cut to max_length, 9 tokens; left out: 2 no_supervised_tokens"),
        (9, "leave_out", "extract: 2 of 6 accepted rows; left out: 4 longer_than_max_length"),
        (
            2,
            "cut",
            "extract: 0 of 6 accepted rows; left out: 6 no_supervised_tokens; none is left: raise extract.max_length, "
            "which is 2",
        ),
        (512, "cut", "extract: 6 of 6 accepted rows\n"),
    ],
)
def test_rows_that_are_cut_or_left_out_are_told_and_counted(
    capsys: pytest.CaptureFixture[str], most: int, on_long: str, said: str
) -> None:
    settings = extract_settings(max_length=most, on_long=on_long)
    selection = select(
        Path("accepted"), [pa.RecordBatch.from_pylist(random_rows(ROWS), schema=SCHEMA)], settings, VOCAB
    )
    stage._print_selection(selection, settings)
    assert said in capsys.readouterr().out


def test_settings_have_no_unknown_backend() -> None:
    with pytest.raises(ValueError, match="backend"):
        extract_settings(backend="telepathy")


@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        ("float16", 7e4, r"reaches 7e\+04, more than float16 holds: set extract.dtype to bfloat16"),
        ("float16", float("nan"), "was not computed as a finite number: set extract.compute_dtype"),
        ("float8_e4m3fn", float("inf"), "was not computed as a finite number"),
        ("float32", float("-inf"), "was not computed as a finite number"),
        ("bfloat16", float("nan"), "was not computed as a finite number"),
    ],
)
@pytest.mark.parametrize("name", ["aux", "last"])
def test_states_that_are_no_finite_numbers_are_never_stored(
    tmp_path: Path, name: str, dtype: Any, value: float, said: str
) -> None:
    rows = [
        InputRow("first", torch.arange(3, dtype=torch.int32), 1),
        InputRow("second", torch.arange(4, dtype=torch.int32), 1),
    ]
    states = {"aux": torch.ones(7, 6), "last": torch.ones(7, 2)}
    states[name][5, 1] = value
    with (
        pytest.raises(ConfigError, match=rf"row 'second': the state '{name}' of token 2 {said}"),
        ShardWriter(tmp_path, rows, dtype) as writer,
    ):
        writer.add([0, 1], states["aux"], states["last"], ShardPlan("shard-00000.safetensors", [[0, 1]], 7))
    assert not list(tmp_path.iterdir())
