"""The command that looks at hidden states."""

from pathlib import Path

import pytest
import torch

from pipeline.commands.hidden import main
from pipeline.core.errors import AerieError
from pipeline.core.files.json_file import read_json, write_json
from pipeline.core.files.tensors import load_tensors, save_tensors
from pipeline.formats.schema.target import TargetRecord
from tests.tiny import ROWS, Build, random_rows

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, kimi: TargetRecord) -> Path:
    return Build(tmp_path, kimi).extract(random_rows(ROWS))


def test_stats_say_what_is_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["stats", "--data", str(folder)])
    out = capsys.readouterr().out
    assert "6 rows, 134 tokens (95 supervised), longest 49" in out
    assert (
        "inputs of layers [2, 4, 5] of 8 (model.layers.2, model.layers.4, model.layers.5), last state before model.norm"
        in out
    )


def test_verify_passes_whole_states_and_stops_at_a_changed_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["verify", "--data", str(folder)])
    assert "6 rows, 134 tokens, every id checked" in capsys.readouterr().out
    shard = folder / "shard-00000.safetensors"
    tensors = load_tensors(shard)
    save_tensors(shard, {**tensors, "aux": tensors["aux"] + 1})
    with pytest.raises(AerieError, match="a file changed after extraction"):
        main(["verify", "--data", str(folder)])
    broken = tensors["last"].clone()
    broken[50] = torch.nan
    save_tensors(shard, {**tensors, "last": broken})
    with pytest.raises(AerieError, match=r"last is not finite at 1 of \d+ tokens, first at 1"):
        main(["verify", "--data", str(folder)])


def test_verify_names_the_id_that_is_outside_the_vocabulary(tmp_path: Path, kimi: TargetRecord) -> None:
    folder = Build(tmp_path, kimi).extract(random_rows(ROWS))
    manifest = read_json(folder / "manifest.json")
    highest = max(token for row in random_rows(ROWS) for token in row["prompt_ids"] + row["completion_ids"])
    write_json(folder / "manifest.json", {**manifest, "vocab_size": highest})
    with pytest.raises(AerieError, match=rf"row '\w+' has token id {highest}; the vocabulary has {highest}"):
        main(["verify", "--data", str(folder)])


def test_show_gives_one_row_and_names_others_when_there_is_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["show", "tail", "--data", str(folder)])
    out = capsys.readouterr().out
    assert "prompt 7, supervised 11" in out
    assert str(random_rows(ROWS)[-1]["completion_ids"]) in out
    with pytest.raises(AerieError, match=r"no row 'nobody' in .*; there are for example \['long', 'short', 'middle'\]"):
        main(["show", "nobody", "--data", str(folder)])
