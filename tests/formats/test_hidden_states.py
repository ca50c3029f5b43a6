"""Hidden states on disk: damaged files, and files of different runs, are refused with both sides named."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.core.errors import AerieError, ArtifactError
from pipeline.core.files.json_file import read_json, write_json
from pipeline.core.files.tables import read_rows
from pipeline.core.files.tensors import load_tensors, save_tensors
from pipeline.formats.hidden_states import HiddenStates, IndexRow, dequantize, folders_of_build, quantize
from pipeline.formats.schema.hidden_index import INDEX
from pipeline.formats.schema.target import TargetRecord
from tests.parquet import write_rows
from tests.tiny import ROWS, Build, random_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, kimi: TargetRecord) -> Path:
    return Build(tmp_path_factory.mktemp("build"), kimi).extract(random_rows(ROWS))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "hidden"))


def shard(folder: Path) -> Path:
    return next(folder.glob("shard-*"))


def rewrite_index(folder: Path, change: Any) -> None:
    rows = list(read_rows(folder / "index.parquet", INDEX))
    change(rows)
    write_rows(folder / "index.parquet", INDEX, rows)


@pytest.mark.parametrize("lost", [1, 40, 5000])
def test_a_shard_cut_short_is_refused_and_not_read_as_zeros(folder: Path, lost: int) -> None:
    data = shard(folder).read_bytes()
    shard(folder).write_bytes(data[:-lost])
    with pytest.raises(
        ArtifactError,
        match=rf"shard-00000.safetensors: not a whole safetensors file "
        rf"\({len(data) - lost:,} bytes; its header says {len(data):,}\)",
    ):
        HiddenStates(folder)


def test_an_index_that_reaches_beyond_its_shard_is_refused(folder: Path) -> None:
    def reach(rows: list[dict[str, Any]]) -> None:
        last = max(rows, key=lambda row: row["offset"])
        last["length"] += 1

    rewrite_index(folder, reach)
    with pytest.raises(ArtifactError, match=r"token_ids has shape \[134\].*need \[135\]"):
        HiddenStates(folder)


def test_an_index_whose_rows_overlap_is_refused(folder: Path) -> None:
    rewrite_index(folder, lambda rows: rows[0].update(length=rows[0]["length"] + 1))
    with pytest.raises(
        ArtifactError, match=r"row 'short' begins at 49 of shard-00000.safetensors, the row before it ends at 50"
    ):
        HiddenStates(folder)


def test_rows_whose_ids_differ_from_the_index_are_refused_on_reading(folder: Path) -> None:
    def swap(rows: list[dict[str, Any]]) -> None:
        rows[1]["offset"], rows[4]["offset"] = rows[4]["offset"], rows[1]["offset"]  # two rows of one length

    rewrite_index(folder, swap)
    states = HiddenStates(folder)
    with pytest.raises(ArtifactError, match=r"row 'short' at .*: token ids have checksum .*, index.parquet has"):
        states[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "long"}, "row 'long' comes twice, as number 0 and 1"),
        ({"prompt_length": 9}, "has 8 tokens, 9 of them prompt"),
        ({"prompt_length": -1}, "has 8 tokens, -1 of them prompt"),
        ({"length": 0}, "has 0 tokens"),
        ({"shard": "../hidden/shard-00000.safetensors"}, "the name of a file beside the index is needed"),
    ],
)
def test_an_index_row_that_cannot_be_is_refused(folder: Path, change: dict[str, Any], said: str) -> None:
    rewrite_index(folder, lambda rows: rows[1].update(change))
    with pytest.raises(ArtifactError, match=said):
        HiddenStates(folder)


def test_a_shard_that_no_row_of_the_index_is_in_is_refused(folder: Path) -> None:
    shutil.copy(shard(folder), folder / "shard-00007.safetensors")
    with pytest.raises(ArtifactError, match=r"no row of index.parquet is in \['shard-00007.safetensors'\]"):
        HiddenStates(folder)


@pytest.mark.parametrize(
    ("name", "dtype"), [("aux", torch.float16), ("last", torch.float64), ("token_ids", torch.int64)]
)
def test_tensors_of_another_type_than_the_manifest_says_are_refused(
    folder: Path, name: str, dtype: torch.dtype
) -> None:
    tensors = load_tensors(shard(folder))
    save_tensors(shard(folder), {**tensors, name: tensors[name].to(dtype)})
    with pytest.raises(ArtifactError, match=rf"{name} is {dtype}; manifest.json \(dtype float32\) needs"):
        HiddenStates(folder)


@pytest.mark.parametrize("layer_ids", [[2, 3, 99], [5, 4, 2], [2, 2, 5], [-1, 3, 5]])
def test_a_manifest_with_layers_that_the_target_does_not_have_is_refused(folder: Path, layer_ids: list[int]) -> None:
    write_json(folder / "manifest.json", {**read_json(folder / "manifest.json"), "layer_ids": layer_ids})
    with pytest.raises(
        ArtifactError, match=r"manifest.json: .*not three ascending ids from 0 to num_layers, which is 8"
    ):
        HiddenStates(folder)


def test_states_of_another_width_than_the_manifest_says_are_refused(folder: Path) -> None:
    write_json(folder / "manifest.json", {**read_json(folder / "manifest.json"), "hidden_size": 33})
    with pytest.raises(ArtifactError, match=r"aux has shape \[134, 96\].*hidden size 33.*need \[134, 99\]"):
        HiddenStates(folder)


def test_fewer_states_than_token_ids_are_refused(folder: Path) -> None:
    tensors = load_tensors(shard(folder))
    save_tensors(shard(folder), {**tensors, "aux": tensors["aux"][:-32]})
    with pytest.raises(ArtifactError, match=r"aux has shape \[102, 96\]"):
        HiddenStates(folder)


@pytest.mark.parametrize("name", ["manifest.json", "index.parquet", "shard-00000.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(AerieError, match=name):
        HiddenStates(folder)


def test_float8_with_a_scale_for_each_token_and_layer_keeps_small_and_large_states(tmp_path: Path) -> None:
    states = (
        torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1e-4, 1e-1, 1.0, 1e3, 1e6])[:, None]
    )
    states[2] = 0
    narrow, scales = quantize(states, 3)
    save_tensors(tmp_path / "t.safetensors", {"n": narrow, "s": scales})
    back = load_tensors(tmp_path / "t.safetensors")
    found = dequantize(back["n"], back["s"])
    largest = states.reshape(5, 3, 4).abs().amax(-1).repeat_interleave(4, -1)
    assert ((found - states).abs() <= largest * 2**-4).all()
    assert (found[2] == 0).all()


def test_tensors_of_every_kind_come_back_as_they_were_and_equal_tensors_give_equal_bytes(tmp_path: Path) -> None:
    kinds = [
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float8_e4m3fn,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    ]
    tensors = {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in kinds} | {
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(3.0),
    }
    save_tensors(tmp_path / "a", tensors, {"b": "2", "a": "1"})
    save_tensors(tmp_path / "b", dict(reversed(tensors.items())), {"a": "1", "b": "2"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    for name, found in load_tensors(tmp_path / "a").items():
        assert found.dtype == tensors[name].dtype
        assert found.shape == tensors[name].shape
        assert torch.equal(found.float(), tensors[name].float())


def test_the_states_of_a_build_are_those_of_its_datasets_and_not_of_one_that_left(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"names": ["code", "tools"]})
    (tmp_path / "left" / "hidden").mkdir(parents=True)
    assert folders_of_build(tmp_path) == [tmp_path / "code" / "hidden", tmp_path / "tools" / "hidden"]
    with pytest.raises(ArtifactError, match=r"config.json"):
        folders_of_build(tmp_path / "left")


def test_opening_costs_no_more_a_row_when_there_are_many_shards(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of the index is looked at once for its shard, however many shards there are."""
    looked: list[IndexRow] = []
    monkeypatch.setattr(HiddenStates, "_check", lambda self, name, shard, rows: looked.extend(rows))
    states = HiddenStates(whole)
    assert sorted(row.id for row in looked) == sorted(row.id for row in states.index)
