"""Held-out rows are chosen by the content of their prompts."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.hidden_states import HiddenStates
from pipeline.formats.loss_mask import weights_of
from pipeline.formats.schema.target import TargetRecord
from pipeline.project.trainer_formats.source import ExportSource, Split
from pipeline.stages.train.split import heldout_prompts, prompt_key
from tests.tiny import Build, token_row

pytestmark = pytest.mark.slow

THINK_OPEN, THINK_CLOSE = 90, 91


def keys_of(first: int, count: int) -> list[bytes]:
    return [hashlib.sha256(str(number).encode()).digest() for number in range(first, first + count)]


def test_answers_to_one_prompt_are_on_one_side_in_all_datasets(tmp_path: Path, kimi: TargetRecord) -> None:
    """40 prompts with 4 answers each, named as reconstruct names them, and the same prompts in a second dataset."""
    build = Build(tmp_path, kimi)
    prompts = [[1 + number, 2, 3, 4] for number in range(40)]
    rows = [
        token_row(f"p{number}{mark}", prompt, [5, 6 + answer])
        for number, prompt in enumerate(prompts)
        for answer, mark in enumerate(("", "#1", "#2", "#3"))
    ]
    folders = [
        build.extract(rows, "a"),
        build.extract([token_row(f"other{n}", prompt, [9, 9]) for n, prompt in enumerate(prompts)], "b"),
    ]
    sides = {}
    for side in ("training", "heldout"):
        source = ExportSource(folders, weights_of("completion+tools"), Split(side, 0.1))
        sides[side] = [row.states for row in source.rows()]
    assert sum(map(len, sides.values())) == 200
    asked = {side: {tuple(row.token_ids[:4].tolist()) for row in listed} for side, listed in sides.items()}
    assert not asked["training"] & asked["heldout"]
    assert 0.05 <= len(sides["heldout"]) / 200 <= 0.2


def test_a_prompt_with_and_without_reasoning_is_one_prompt_and_an_unknown_one_goes_by_name(
    tmp_path: Path, kimi: TargetRecord
) -> None:
    rows = [
        token_row("on", [1, 2, 3, 4, 5, 6, 7, THINK_OPEN], [8]),
        token_row("off", [1, 2, 3, 4, 5, 6, 7, THINK_OPEN, THINK_CLOSE], [8]),
        token_row("spelled-out-early", [1, 2, THINK_OPEN, 4, 5, 6, 7, 8, 9], [8]),
        token_row("early-too", [1, 2, THINK_OPEN, 5, 5, 6, 7, 8, 9], [8]),
        token_row("short", [THINK_OPEN], [8, 9]),
        token_row("q", [], [8, 9]),
        token_row("q#1", [], [8, 10]),
        token_row("q#x", [], [8, 10]),
    ]
    states = HiddenStates(Build(tmp_path, kimi).extract(rows, "a"))
    keys = {row.id: prompt_key(states, number, THINK_OPEN) for number, row in enumerate(states.index)}
    assert keys["on"] == keys["off"]
    assert keys["q"] == keys["q#1"]
    assert len(set(keys.values())) == 6
    assert prompt_key(states, states.by_id["on"], None) != prompt_key(states, states.by_id["off"], None)


@given(st.integers(2, 400), st.integers(0, 300), st.sampled_from([0.02, 0.1, 0.3, 0.9]))
def test_the_share_is_near_the_config_and_some_rows_are_on_each_side(count: int, first: int, share: float) -> None:
    keys = keys_of(first, count)
    held = sum(key in heldout_prompts(keys, share) for key in keys)
    assert 1 <= held < count
    assert held <= max(1, 2 * share * count)
    assert held >= min(share * count / 2, count - 1)


def test_a_prompt_stays_on_its_side_when_rows_come_and_go() -> None:
    for first in range(0, 20_000, 2_000):
        before, after = keys_of(first, 400), keys_of(first, 1_500)
        held = heldout_prompts(before, 0.1)
        assert held == heldout_prompts(after, 0.1) & set(before)
        assert held == heldout_prompts([*before, *before[:200]], 0.1)
    many = keys_of(0, 20_000)
    assert len(heldout_prompts(many, 0.1)) / len(many) == pytest.approx(0.1, abs=0.006)


def test_nothing_is_held_out_of_one_prompt_or_for_a_share_of_zero() -> None:
    assert heldout_prompts(keys_of(0, 1) * 5, 0.3) == set()
    assert heldout_prompts(keys_of(0, 50), 0.0) == set()
    assert heldout_prompts([], 0.3) == set()


def test_a_prompt_with_most_of_the_rows_is_trained_on() -> None:
    keys = sorted(keys_of(0, 10))
    assert keys[0] not in heldout_prompts([keys[0]] * 50 + keys[1:], 0.1)
    assert heldout_prompts([keys[0]] * 50 + keys[1:], 0.1)
