"""Selection of rows, batches and shards."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError, DiskError, InputError
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.model.weights.layer_ids import auxiliary_layers
from pipeline.stages.extract.plan import MOST_PADDING, InputRow, Selection, batches, bytes_per_token, select, shards
from pipeline.stages.extract.writer import check_space
from tests.tiny import VOCAB, extract_settings, random_rows, token_row

pytestmark = pytest.mark.slow

LENGTHS = st.lists(st.integers(2, 200), max_size=40)


def chosen_of(rows: list[dict[str, Any]], **changes: Any) -> Selection:
    return select(Path("a"), [pa.RecordBatch.from_pylist(rows, schema=SCHEMA)], extract_settings(**changes), VOCAB)


def rows_of(lengths: list[int]) -> list[InputRow]:
    shapes = [(str(number), 1, length - 1) for number, length in enumerate(lengths)]
    return chosen_of(random_rows(shapes), max_length=1000).rows


@settings(deadline=None, max_examples=50)
@given(LENGTHS, st.integers(1, 300), st.booleans())
def test_each_row_is_in_exactly_one_batch_and_batches_keep_their_size(
    lengths: list[int], tokens: int, padded: bool
) -> None:
    rows = rows_of(lengths)
    planned = list(batches(rows, tokens, padded=padded))
    assert sorted(number for batch in planned for number in batch) == list(range(len(rows)))
    for batch in planned:
        sizes = [len(rows[number].token_ids) for number in batch]
        computed = max(sizes) * len(sizes) if padded else sum(sizes)
        assert computed <= tokens or len(batch) == 1
        assert computed - sum(sizes) <= MOST_PADDING * computed


@settings(deadline=None, max_examples=50)
@given(LENGTHS, st.integers(1, 5000))
def test_shards_hold_whole_batches_and_keep_their_size(lengths: list[int], shard_bytes: int) -> None:
    rows = rows_of(lengths)
    planned = list(batches(rows, 128, padded=False))
    plans = shards(rows, planned, 10, shard_bytes)
    assert [batch for plan in plans for batch in plan.batches] == planned
    assert all(plan.tokens * 10 <= shard_bytes or len(plan.batches) == 1 for plan in plans)
    assert all((one.tokens + next_one.tokens) * 10 > shard_bytes / 2 for one, next_one in pairwise(plans))
    assert len({plan.name for plan in plans}) == len(plans)


SHAPES = [(str(number), 1, 19 + number * 37 % 981) for number in range(1200)]
"""Lengths from 20 to 1,000."""


def changed_share(before: list[InputRow], after: list[InputRow], *, padded: bool) -> float:
    """Return the share of the tokens that are in batches that did not exist before."""
    known = {tuple(before[n].checksum for n in batch) for batch in batches(before, 2048, padded=padded)}
    new = [
        batch for batch in batches(after, 2048, padded=padded) if tuple(after[n].checksum for n in batch) not in known
    ]
    return sum(len(after[n].token_ids) for batch in new for n in batch) / sum(len(row.token_ids) for row in after)


@pytest.mark.parametrize("padded", [False, True])
def test_rows_added_at_the_end_or_at_one_place_change_the_batches_there_and_no_others(padded: bool) -> None:
    rows = chosen_of(random_rows(SHAPES), max_length=1000).rows
    new = chosen_of(random_rows([(f"new-{n}", 1, 200 + 60 * n) for n in range(12)], seed=9), max_length=1000).rows
    most = (
        0.03 if not padded else 0.2
    )  # 1 % are new; a padded batch takes its rows from a neighbourhood of 32 batches, of 400 in all
    for place in (0, 1, 500, len(rows)):
        assert 0.01 < changed_share(rows, [*rows[:place], *new, *rows[place:]], padded=padded) < most
        assert changed_share(rows, [*rows[:place], *rows[place + 12 :]], padded=padded) < most


def test_an_edit_anywhere_changes_two_or_three_batches() -> None:
    rows = chosen_of(random_rows(SHAPES), max_length=1000).rows
    rng, shares = random.Random(0), []
    for _ in range(40):
        place = rng.randrange(len(rows))
        shares.append(changed_share(rows, [*rows[:place], *rows[place + 1 :]], padded=False))
    assert sum(shares) / len(shares) < 2.5 * 2048 / sum(len(row.token_ids) for row in rows)


def test_a_row_whose_answer_lies_beyond_the_limit_is_left_out_and_one_that_is_only_cut_stays() -> None:
    rows = [token_row("x", [1] * 200, [2] * 40), token_row("y", [1] * 30, [2] * 40)]
    chosen = chosen_of(rows, max_length=64)
    assert dict(chosen.left_out) == {"no_supervised_tokens": 1}
    (kept,) = chosen.rows
    assert (kept.id, len(kept.token_ids), len(kept.token_ids) - kept.prompt_length) == ("y", 64, 34)
    assert chosen.cut == 1


def test_long_rows_are_left_out_and_counted_when_the_config_says_so() -> None:
    chosen = chosen_of([token_row("y", [1] * 30, [2] * 40)], max_length=64, on_long="leave_out")
    assert not chosen.rows
    assert dict(chosen.left_out) == {"longer_than_max_length": 1}


def test_a_token_of_another_vocabulary_is_named_with_its_row() -> None:
    with pytest.raises(InputError, match=r"row 'z': token 1 is 163586; the target's vocabulary has 300"):
        chosen_of([token_row("z", [1], [163586, 2])])


def test_an_id_that_comes_twice_is_refused() -> None:
    with pytest.raises(InputError, match="'z' comes twice"):
        chosen_of([token_row("z", [1], [2]), token_row("z", [1], [3])])


@pytest.mark.parametrize(
    ("layers", "expected"), [(32, [2, 16, 29]), (36, [2, 18, 33]), (61, [2, 30, 58]), (7, [2, 3, 4])]
)
def test_default_layers_are_those_of_the_engines(layers: int, expected: list[int]) -> None:
    assert auxiliary_layers(None, layers) == expected


@pytest.mark.parametrize(
    ("layers", "count", "message"),
    [
        (None, 6, r"gives \[2, 3, 3\]: three different"),
        ([1, 2, 9], 8, r"out of range; the target has layers 0 to 7, and 8 names the last layer's output"),
        ([-1, 2, 3], 8, "out of range"),
        ([4, 2, 3], 8, "low to high"),
        ([1, 2], 8, "three different"),
    ],
)
def test_layers_that_the_target_does_not_have_are_refused(layers: list[int] | None, count: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        auxiliary_layers(layers, count)


def test_a_7168_wide_model_needs_57_kilobytes_a_token_in_bfloat16_and_half_in_float8() -> None:
    assert bytes_per_token(7168, "bfloat16") == 57_344 + 4
    assert bytes_per_token(7168, "float8_e4m3fn") == 57_344 // 2 + 4 + 16


def test_disk_full_at_1_17_gb_a_sample_is_foreseen_before_the_first_forward_pass(tmp_path: Path) -> None:
    with pytest.raises(
        DiskError,
        match=r"need 57,344,000,000,000,000 bytes more \(1,000,000,000,000 tokens of 57,344 bytes\), [\d,]+ are free",
    ):
        check_space(tmp_path, 57_344 * 10**12, 10**12, 57_344)
