"""Training data in other trainers' formats, checked against what their readers expect."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from pipeline.commands.export_data import main
from pipeline.core.errors import AerieError, InputError
from pipeline.core.files.json_file import read_json, write_json
from pipeline.core.files.tensors import load_tensors
from pipeline.formats.hidden_states import HiddenStates
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.weights.ends import open_ends
from tests.tiny import ROWS, VOCAB, WIDTH, Build, random_rows, train_settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, kimi: TargetRecord) -> Build:
    build = Build(tmp_path_factory.mktemp("build"), kimi)
    build.extract(random_rows(ROWS), "a")
    build.extract(random_rows(ROWS[:2], seed=1), "b")
    return build


def export(build: Build, kind: str, out: Path) -> Path:
    main(
        [
            "--format",
            kind,
            "--out",
            str(out),
            "--model",
            str(build.model),
            "--data",
            str(build.hidden("a")),
            "--data",
            str(build.hidden("b")),
        ]
    )
    return out


def test_specforge_gets_unpadded_rows_with_the_last_state_after_the_norm(build: Build, tmp_path: Path) -> None:
    out = export(build, "specforge", tmp_path / "out")
    files = sorted(out.glob("rows_0-2000/data_*.ckpt"))
    assert len(files) == 8
    first = HiddenStates(build.hidden("a"))[0]
    loaded = torch.load(out / "rows_0-2000" / "data_0.ckpt", weights_only=True)
    assert {name: (tensor.dtype, list(tensor.shape)) for name, tensor in loaded.items()} == {
        "input_ids": (torch.int64, [49]),
        "loss_mask": (torch.int64, [49]),
        "aux_hidden_state": (torch.bfloat16, [1, 49, 3 * WIDTH]),
        "hidden_state": (torch.bfloat16, [1, 49, WIDTH]),
    }
    assert loaded["loss_mask"].tolist() == [0] * 9 + [1] * 40
    ends = open_ends(build.model)
    normed = ends.teacher_hidden(first.last)
    torch.testing.assert_close(loaded["hidden_state"][0], normed.bfloat16())
    assert not torch.allclose(loaded["hidden_state"][0].float(), first.last, atol=0.1)


def test_specforges_vocabulary_map_has_offsets_and_covers_the_supervised_tokens(build: Build, tmp_path: Path) -> None:
    mapping = torch.load(export(build, "specforge", tmp_path / "out") / "vocab_mapping.pt", weights_only=True)
    assert torch.equal(mapping["t2d"].nonzero().flatten(), mapping["d2t"] + torch.arange(len(mapping["d2t"])))
    assert len(mapping["d2t"]) == VOCAB


def test_speculators_gets_four_states_before_the_norm_and_equal_token_ids_so_that_no_row_is_dropped(
    build: Build, tmp_path: Path
) -> None:
    out = export(build, "speculators", tmp_path / "out")
    with pa.ipc.open_stream(out / "data-00000-of-00001.arrow") as stream:
        table = stream.read_all().to_pylist()
    assert [row["seq_len"] for row in table] == [p + c for _, p, c in ROWS] + [p + c for _, p, c in ROWS[:2]]
    dropped = 0
    for number, row in enumerate(table):
        tensors = load_tensors(out / "hidden_states" / f"hs_{number}.safetensors")
        dropped += tensors["token_ids"].tolist() != row["input_ids"]
        assert tensors["hidden_states"].shape == (row["seq_len"], 4, WIDTH)
        assert sum(row["loss_mask"]) == ([c for _, _, c in ROWS] + [c for _, _, c in ROWS[:2]])[number]
    assert dropped == 0
    first = HiddenStates(build.hidden("a"))[0]
    stored = load_tensors(out / "hidden_states" / "hs_0.safetensors")["hidden_states"]
    assert torch.equal(stored[:, :3].flatten(1), first.aux.bfloat16())
    assert torch.equal(stored[:, 3], first.last.bfloat16())


def test_speculators_reads_ids_as_tensors_and_finds_token_counts(build: Build, tmp_path: Path) -> None:
    out = export(build, "speculators", tmp_path / "out")
    assert read_json(out / "state.json")["_format_type"] == "torch"
    frequency = torch.load(out / "token_freq.pt", weights_only=True)
    assert sum(frequency.values()) == sum(c for _, _, c in [*ROWS, *ROWS[:2]])


def test_states_of_two_targets_are_not_exported_together(build: Build, tmp_path: Path, kimi: TargetRecord) -> None:
    other = Build(tmp_path / "other", kimi, seed=1).extract(random_rows(ROWS[:1]))
    with pytest.raises(
        AerieError, match=rf"{build.hidden('a')} and {other} are not of one target: target_sha256 \w+ and \w+"
    ):
        main(
            [
                "--format",
                "speculators",
                "--out",
                str(tmp_path / "out"),
                "--data",
                str(build.hidden("a")),
                "--data",
                str(other),
            ]
        )
    assert not (tmp_path / "out").exists()


def test_a_build_is_exported_whole_or_not_at_all(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dataset b left params.yaml, its states are still there; c is new and not extracted yet."""
    monkeypatch.setattr("pipeline.commands.export_data.BUILD", build.folder)
    train = train_settings(loss_mask={"content": 1}, heldout=0).model_dump(mode="json")
    write_json(build.folder / "config.json", {"names": ["a"], "train": train})
    main(["--format", "speculators", "--out", str(tmp_path / "out")])
    assert len(list((tmp_path / "out" / "hidden_states").iterdir())) == len(ROWS)
    write_json(build.folder / "config.json", {"names": ["a", "c"], "train": train})
    with pytest.raises(AerieError, match=r"no hidden states in .*/c/hidden: run `dvc repro extract`"):
        main(["--format", "speculators", "--out", str(tmp_path / "out")])


def test_states_that_changed_after_extraction_are_not_exported(build: Build, tmp_path: Path) -> None:
    hidden = shutil.copytree(build.hidden("a"), tmp_path / "a" / "hidden")
    shutil.copytree(build.stamps, tmp_path / "extracted")
    shard = next(hidden.glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(
        AerieError, match=r"the files' digest is \w+, .*a.json has \w+: a file changed after extraction"
    ):
        main(["--format", "speculators", "--out", str(tmp_path / "out"), "--data", str(hidden)])
    assert not (tmp_path / "out").exists()


def test_an_export_replaces_an_earlier_one_and_never_anything_else(build: Build, tmp_path: Path) -> None:
    out = export(build, "specforge", tmp_path / "out")
    export(build, "speculators", out)
    assert not (out / "vocab_mapping.pt").exists()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"out: holds thesis.txt, which no export wrote"):
        export(build, "speculators", out)
    assert (out / "thesis.txt").read_text() == "years of work"
    with pytest.raises(InputError, match="is a file"):
        export(build, "speculators", out / "thesis.txt")


def test_states_that_are_exported_are_never_replaced_by_the_export(build: Build) -> None:
    with pytest.raises(InputError, match=r"holds index.parquet"):
        export(build, "speculators", build.hidden("a"))
    assert len(HiddenStates(build.hidden("a"))) == len(ROWS)


def test_a_folder_named_twice_is_refused(build: Build, tmp_path: Path) -> None:
    folder = str(build.hidden("a"))
    with pytest.raises(InputError, match="names a folder twice"):
        main(["--format", "speculators", "--out", str(tmp_path / "out"), "--data", folder, "--data", f"{folder}/."])


@pytest.mark.parametrize("size", ["0", "-5"])
def test_a_vocabulary_of_no_size_is_refused(tmp_path: Path, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--format", "specforge", "--out", str(tmp_path / "out"), "--draft-vocab-size", size])
    assert "is not positive" in capsys.readouterr().err


def test_a_loss_mask_of_the_build_with_weights_between_0_and_1_is_reported(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.commands.export_data.BUILD", build.folder)
    train = train_settings(loss_mask={"content": 0.5, "end": 1}).model_dump(mode="json")
    write_json(build.folder / "config.json", {"names": ["a"], "train": train})
    main(["--format", "speculators", "--out", str(tmp_path / "out")])
    assert "loss_mask: {'content': 0.5} of train.loss_mask are written as 1" in capsys.readouterr().err
