"""Readings of texts that hide how the answer went on: an empty content, text after the end, half a character, seams."""

from typing import Any

import pytest

from pipeline.answers.rows import RowMaker
from pipeline.answers.segmented_ids import unpack
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.answers.build import CLOSE, END, body, codes, rows_of

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def ids_of(tokenizer: Tokenizer, reasoning: str, content: str) -> list[int]:
    return [*tokenizer.encode(reasoning), CLOSE, *tokenizer.encode(content), END]


def honest(tokenizer: Tokenizer, reasoning: str, content: str, **fields: Any) -> dict[str, Any]:
    """Return a body whose text is what the model wrote, and whose bill counts it."""
    return {**body(reasoning, content, billed=len(ids_of(tokenizer, reasoning, content))), **fields}


def test_the_bill_shows_an_empty_content_where_the_server_splits_the_reasoning_off(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    others = [honest(tokenizer, f"Count {word}.\n", f"\n\nIt is {word}.\n") for word in WORDS]
    whole = ids_of(tokenizer, "Nothing is left to say", "")
    row = rows_of(maker, *others, body("Nothing is left to say", None, billed=len(whole)))[-1]
    assert (row.status, row.evidence, unpack(row.completion)) == ("accept", "count", whole)
    for off in (-1, 1):
        row = rows_of(maker, *others, body("Nothing is left to say", None, billed=len(whole) + off))[-1]
        assert row.status == "reject"


def test_a_close_tag_in_the_content_may_be_the_last_thing_that_the_model_wrote(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    whole = ids_of(tokenizer, "Nothing is left to say", "")
    (row,) = rows_of(maker, body(None, "Nothing is left to say</think>", billed=len(whole)))
    assert (row.status, unpack(row.completion)) == ("accept", whole)


@pytest.mark.parametrize("tags", [1, 2, 6])
def test_a_reasoning_that_spells_its_close_out_is_not_split_there(
    maker: RowMaker, tokenizer: Tokenizer, tags: int
) -> None:
    reasoning = "Is it </think> or not? " * tags + "Done"
    whole = ids_of(tokenizer, reasoning, "")
    (row,) = rows_of(maker, body(None, f"{reasoning}</think>", billed=len(whole)))
    assert row.status == "flag"
    assert "literal_close_tag" in codes(row)
    assert unpack(row.completion) == whole


def test_two_splits_of_equal_count_are_ambiguous(maker: RowMaker, tokenizer: Tokenizer) -> None:
    whole = ids_of(tokenizer, "A</think> b", "")
    (row,) = rows_of(maker, body(None, "A</think> b</think>", billed=len(whole)))
    assert (row.status, row.evidence) == ("flag", "text")
    assert "ambiguous_count" in codes(row)


@pytest.mark.parametrize("after", ["[EOS]", "\n[EOS]", "<|im_user|>user<|im_middle|>And?", " And then more text."])
def test_text_after_the_end_token_is_dropped_when_the_bill_does_not_count_it(
    maker: RowMaker, tokenizer: Tokenizer, after: str
) -> None:
    whole = ids_of(tokenizer, "Think.", "Say it")
    (row,) = rows_of(maker, body("Think.", f"Say it<|im_end|>{after}", billed=len(whole)))
    assert (row.status, row.evidence, unpack(row.completion)) == ("accept", "count", whole)
    assert "strip_text_after_terminator" in codes(row)


@pytest.mark.parametrize(
    ("after", "more"), [("[EOS]", 1), ("<|im_user|>user<|im_middle|>And?", 0), (" And then more text.", 0)]
)
def test_a_model_that_ran_on_past_its_end_is_rejected(
    maker: RowMaker, tokenizer: Tokenizer, after: str, more: int
) -> None:
    parts = {"<|im_user|>user<|im_middle|>And?": 2 + len([*tokenizer.encode("user"), *tokenizer.encode("And?")])}
    extra = more or parts.get(after) or len(tokenizer.encode(after))
    billed = len(ids_of(tokenizer, "Think.", "Say it")) + extra
    (row,) = rows_of(maker, body("Think.", f"Say it<|im_end|>{after}", billed=billed))
    assert (row.status, row.reason) == ("reject", "ran_on_past_end")


def test_an_end_token_that_is_spelled_out_stays_text_by_its_bill(maker: RowMaker, tokenizer: Tokenizer) -> None:
    content = "The marker <|im_end|> closes a turn"
    whole = ids_of(tokenizer, "Think.", content)
    (row,) = rows_of(maker, body("Think.", content, billed=len(whole)))
    assert (row.status, unpack(row.completion)) == ("accept", whole)


@pytest.mark.parametrize("finish", ["length", "stop"])
@pytest.mark.parametrize("text", ["Look: 😀", "naïvité", "語学を學", "plain 𓀀", "x\n🏴"])
def test_an_answer_cut_inside_a_character_keeps_the_tokens_that_are_certain(
    maker: RowMaker, tokenizer: Tokenizer, text: str, finish: str
) -> None:
    ids = tokenizer.encode(f"It rains in Oslo. {text} and so on 𓀀𓀁")
    cuts = 0
    for place in range(1, len(ids)):
        shown = tokenizer.decode_bytes(ids[:place]).decode("utf-8", "replace")
        if shown.endswith("\ufffd"):
            cuts += 1
            billed = len(tokenizer.encode("Think.")) + 1 + place
            (row,) = rows_of(maker, body("Think.", shown, finish=finish, billed=billed))
            truth = [*tokenizer.encode("Think."), CLOSE, *ids[:place]]
            rebuilt = unpack(row.completion)
            assert (row.status, row.evidence) == ("flag", "text")
            assert codes(row) >= {"truncated_in_content", "cut_inside_character"}
            assert rebuilt == truth[: len(rebuilt)]
            assert len(truth) - len(rebuilt) < 12
    assert cuts


def test_vllm_is_taken_for_trimming_the_reasoning_until_a_row_shows_otherwise(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    vllm = {"prompt_logprobs": None, "kv_transfer_params": None}
    rows = [honest(tokenizer, f"Count {word}.", f"It is {word}", **vllm) for word in WORDS]
    assert {row.reason for row in rows_of(maker, *rows)} == {"edge_whitespace_suspected"}
    shown = honest(tokenizer, "This one ends in a line break.\n", "Yes", **vllm)
    assert {row.status for row in rows_of(maker, *rows, shown)} == {"accept"}
    other = [honest(tokenizer, f"Count {word}.", f"It is {word}") for word in WORDS]
    assert {row.status for row in rows_of(maker, *other)} == {"accept"}, "another server is not vLLM"


def test_vllm_is_believed_where_white_space_would_have_cost_a_token(maker: RowMaker, tokenizer: Tokenizer) -> None:
    text = next(
        text
        for text in ("call me", "so it is", "x = y", "let us go", "maybe")
        if all(
            len(tokenizer.encode(text + space)) > len(tokenizer.encode(text)) for space in ("\n", "\n\n", " ", " \n")
        )
    )
    (row,) = rows_of(maker, honest(tokenizer, text, "Yes", prompt_logprobs=None))
    assert (row.status, row.evidence) == ("accept", "count")


def test_a_stripping_server_alone_in_its_file_is_known_by_bills_above_its_text(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """Two of ten answers began with a blank line, which costs a token; the line breaks at the ends cost none."""
    rows = []
    for number, word in enumerate(WORDS):
        emitted = ids_of(tokenizer, f"Count {word}.", ("\n\n" if number < 2 else "") + f"It is {word}.\n")
        rows.append(body(f"Count {word}.", f"It is {word}.", billed=len(emitted)))
    assert not {row.status for row in rows_of(maker, *rows)} & {"accept"}


def test_the_first_of_two_close_tags_is_not_believed_on_a_count_alone(maker: RowMaker, tokenizer: Tokenizer) -> None:
    """A reasoning that spells the tag out, in another cut than the tokenizer's, costs as much as the wrong split."""
    first = ids_of(tokenizer, "Is ", " a tag? Yes</think>So it is")
    (row,) = rows_of(maker, body(None, "Is </think> a tag? Yes</think>So it is", billed=len(first)))
    assert row.status == "flag"
    assert "literal_close_tag" in codes(row)
