"""Draft vocabulary and checkpoint: one that does not fit is refused.

Near-zero acceptance after an export has its cause here.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ArtifactError, ConfigError
from pipeline.core.files.json_file import read_json, write_json
from pipeline.drafter.checkpoint import load_drafter, save_drafter
from pipeline.drafter.vocabulary import choose_vocabulary, vocabulary_of
from tests.tiny import random_drafter

pytestmark = pytest.mark.slow

TARGET = "t" * 64


def tensors() -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in random_drafter().state_dict().items()}


def load(folder: Path, saved: dict[str, torch.Tensor], target: str = TARGET) -> torch.nn.Module:
    drafter = random_drafter()
    save_drafter(folder, drafter.config, saved)
    return load_drafter(folder, drafter.embedding, target)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_the_most_frequent_tokens_are_chosen_and_unused_ones_fill_up(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(counts)))
    used = choose_vocabulary(torch.tensor(counts), size)
    chosen = set(used.tolist())
    assert used.tolist() == sorted(chosen)
    assert len(chosen) == size
    left = [count for token, count in enumerate(counts) if token not in chosen]
    assert not left or max(left) <= min(counts[token] for token in chosen)
    d2t = used - torch.arange(size)
    assert d2t[0] >= 0
    assert (d2t.diff() >= 0).all()


def test_more_draft_ids_than_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match="draft_vocab_size is 5; the target's vocabulary has 4"):
        choose_vocabulary(torch.zeros(4, dtype=torch.int64), 5)


def test_a_checkpoint_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    drafter = random_drafter()
    loaded = load(tmp_path / "c", drafter.state_dict())
    assert {n: t.tolist() for n, t in loaded.state_dict().items()} == {
        n: t.tolist() for n, t in drafter.state_dict().items()
    }


def test_absolute_ids_in_the_place_of_offsets_are_refused() -> None:
    saved = tensors()
    used = saved["d2t"] + torch.arange(50)
    with pytest.raises(ArtifactError, match="d2t must hold offsets"):
        vocabulary_of(used, saved["t2d"], "here")
    with pytest.raises(ArtifactError, match="d2t must hold offsets"):
        vocabulary_of(torch.zeros(50, dtype=torch.int64), saved["t2d"], "here")


def test_a_vocabulary_map_of_other_data_is_refused_and_both_sides_are_named(tmp_path: Path) -> None:
    other = random_drafter(seed=5).state_dict()
    with pytest.raises(ArtifactError, match=r"d2t names 50 tokens .*, t2d marks 50 .*, \d+ differ"):
        load(tmp_path / "c", {**tensors(), "d2t": other["d2t"]})


def test_a_checkpoint_without_its_map_is_refused(tmp_path: Path) -> None:
    saved = tensors()
    del saved["d2t"]
    with pytest.raises(ArtifactError, match=r"lacks \['d2t'\]: without the map, draft id i would be taken for token i"):
        load(tmp_path / "c", saved)


def test_a_map_of_another_size_or_type_than_the_config_says_is_refused(tmp_path: Path) -> None:
    saved = tensors()
    fewer = saved["d2t"][:10] + torch.arange(10)
    other = {
        "d2t": saved["d2t"][:10],
        "t2d": torch.zeros(300, dtype=torch.bool).index_fill_(0, fewer, value=True),
    }  # its halves fit each other
    with pytest.raises(ArtifactError, match=r"d2t is torch.int64 \[10\]; config.json needs torch.int64 \[50\]"):
        load(tmp_path / "a", saved | other)
    with pytest.raises(ArtifactError, match=r"d2t is torch.float32 \[50\]"):
        load(tmp_path / "b", saved | {"d2t": saved["d2t"].float()})
    with pytest.raises(ArtifactError, match=r"t2d is torch.bool \[200\]; config.json needs torch.bool \[300\]"):
        load(tmp_path / "c", saved | {"t2d": saved["t2d"][:200]})


def test_a_name_that_the_config_does_not_know_and_a_wrong_shape_are_both_listed(tmp_path: Path) -> None:
    saved = {**tensors(), "midlayer.extra.weight": torch.zeros(3), "fc.weight": torch.zeros(32, 95)}
    with pytest.raises(
        ArtifactError,
        match=r"fc.weight: file \[32, 95\], config \[32, 96\]; midlayer.extra.weight: file \[3\], config None",
    ):
        load(tmp_path / "c", saved)


def test_a_drafter_of_another_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match=f"made for target 'tiny' \\({TARGET[:16]}\\); this build's target is {'u' * 16}"
    ):
        load(tmp_path / "c", tensors(), "u" * 64)


def test_a_target_of_another_width_is_refused(tmp_path: Path) -> None:
    drafter = random_drafter()
    save_drafter(tmp_path / "c", drafter.config, tensors())
    with pytest.raises(ArtifactError, match="needs a target embedding of 300 x 32; the target's is 300 x 40"):
        load_drafter(tmp_path / "c", torch.zeros(300, 40), TARGET)


def test_each_row_of_the_head_says_the_token_that_the_map_gives_it(tmp_path: Path) -> None:
    drafter = random_drafter()
    assert torch.equal(drafter.to_target_ids(torch.arange(50)), drafter.t2d.nonzero().flatten())
    assert int(drafter.t2d.sum()) == 50


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_heads": 3}, "3 heads of 8, 2 key heads, width 32: heads must be"),
        ({"head_dim": 7}, "4 heads of 7"),
        ({"num_kv_heads": 3}, "3 key heads"),
        ({"hidden_size": 0}, "hidden_size: Input should be greater than or equal to 1"),
        ({"draft_vocab_size": 301}, "draft_vocab_size is 301, vocab_size 300"),
        (
            {"layer_ids": [2, 4, 9]},
            r"layer_ids \[2, 4, 9\] are not three ascending ids from 0 to target_layers, which is 8",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, "at least rope_type and rope_theta are needed"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}},
            "transformers cannot make a layer of its config.json: .*factor",
        ),
        (
            {"rope_parameters": {"rope_type": "none", "rope_theta": 1.0}},
            "transformers cannot make a layer of its config.json: 'none'",
        ),
    ],
)
def test_a_config_that_no_drafter_has_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    drafter = random_drafter()
    save_drafter(tmp_path, drafter.config, tensors())
    write_json(tmp_path / "config.json", {**read_json(tmp_path / "config.json"), **change})
    with pytest.raises(ArtifactError, match=said):
        load_drafter(tmp_path, drafter.embedding, TARGET)
