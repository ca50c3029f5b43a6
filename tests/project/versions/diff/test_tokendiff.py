"""Where two id sequences part, what text stands there, and whether only the cut differs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.versions.diff.tokendiff import changed_row, sequence_diff

ids = st.lists(st.integers(0, 3), max_size=12)


@settings(deadline=None)
@given(ids, ids)
def test_shared_start_difference_and_shared_end_make_up_both_sequences(old: list[int], new: list[int]) -> None:
    found = sequence_diff(old, new, None)
    end = found.shared_end
    for whole, span in ((old, found.old), (new, found.new)):
        assert whole[: found.shared_start] + span.ids + whole[len(whole) - end :] == whole
    assert old[: found.shared_start] == new[: found.shared_start]
    assert old[len(old) - end :] == new[len(new) - end :]
    if found.shared_start < min(len(old), len(new)):
        assert old[found.shared_start] != new[found.shared_start], "the shared start is the longest"


def test_the_text_of_both_sides_is_shown_with_special_tokens_by_name(tokenizer: Tokenizer) -> None:
    head, old, new = tokenizer.encode("It is "), tokenizer.encode("seven"), tokenizer.encode("eight degrees")
    found = sequence_diff([*head, *old, 163586], [*head, *new, 163607], tokenizer)
    assert found.before.text == "It is "
    assert found.old.text == "seven<|im_end|>"
    assert found.new.text == "eight degrees</think>"
    assert not found.same_text


def test_the_same_text_in_another_cut_is_told_apart_from_another_text(tokenizer: Tokenizer) -> None:
    whole = tokenizer.encode("hello")
    pieces = [token for letter in "hello" for token in tokenizer.encode(letter)]
    assert whole != pieces
    assert sequence_diff([1, *whole, 2], [1, *pieces, 2], tokenizer).same_text
    assert not sequence_diff([1, *whole, 2], [1, *pieces, 3], tokenizer).same_text


def test_the_name_of_a_special_token_spelled_out_is_not_the_token(tokenizer: Tokenizer) -> None:
    assert not sequence_diff([163586], tokenizer.encode("<|im_end|>"), tokenizer).same_text


def test_half_a_character_is_shown_as_an_escape(tokenizer: Tokenizer) -> None:
    halves = tokenizer.encode("\U0001f9ff")
    assert len(halves) > 1
    assert "\\x" in sequence_diff(halves[:1], [], tokenizer).old.text


def test_long_differences_are_cut_and_counted() -> None:
    found = sequence_diff(list(range(100)), [], None)
    assert len(found.old.ids) + found.old.omitted == 100
    assert found.old.omitted > 0


def test_an_example_names_the_columns_that_differ() -> None:
    old = {"id": "a", "prompt_ids": [1], "completion_ids": [2], "evidence": "text", "segments": [1]}
    found = changed_row(
        old,
        {**old, "completion_ids": [3], "evidence": "ids", "segments": []},
        ["completion", "record"],
        ["evidence", "segments"],
        None,
    )
    assert found.prompt is None
    assert found.completion is not None
    assert found.record == {"evidence": ("text", "ids")}
