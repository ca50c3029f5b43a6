"""The rules behind the cases, each on several inputs: places of special tokens, decisions by the bill, flags."""

from typing import Any

import pytest

from pipeline.answers.rows import PackedRow, RowMaker
from pipeline.answers.segmented_ids import unpack
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.answers.build import ARGS, CALL, CALL_END, CLOSE, END, TOOLS, TOOLS_END, body, call, codes, rows_of

SECTION = (
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}'
    "<|tool_call_end|><|tool_calls_section_end|>"
)
TEXTS = [
    "Plain.",
    "Two words",
    "  spaced  ",
    "\n\nlines\n",
    "naïve 我 😀",
    "`<|im_end|>` and </think> in words",
    "\ufeff\x00\u2028\x85\x0b",
]


def ids(tokenizer: Tokenizer, *pieces: str | int) -> list[int]:
    return [token for piece in pieces for token in ([piece] if isinstance(piece, int) else tokenizer.encode(piece))]


def the_row(maker: RowMaker, *arguments: Any, true: list[int] | None = None, **more: Any) -> PackedRow:
    """Return the row of one body, billed at its true length."""
    if true is not None:
        more.setdefault("billed", len(true))
    return rows_of(maker, body(*arguments, **more))[0]


def is_exact(row: PackedRow, true: list[int], evidence: str = "count", status: str = "accept") -> None:
    assert unpack(row.completion) == true, row
    assert (row.evidence, row.status) == (evidence, status), row


@pytest.mark.parametrize("reasoning", TEXTS)
@pytest.mark.parametrize("content", TEXTS)
def test_special_tokens_stand_by_id_and_text_stays_text(
    reasoning: str, content: str, maker: RowMaker, tokenizer: Tokenizer
) -> None:
    true = ids(tokenizer, reasoning, CLOSE, content, END)
    row = the_row(maker, reasoning, content, true=true)
    is_exact(row, true)
    assert ("literal_special_text" in codes(row)) == ("<|im_end|>" in reasoning + content)


@pytest.mark.parametrize("content", ["a\n</think>\n\nb", "a</think>b", "<think>a</think>b"])
def test_a_close_tag_in_content_divides_it(content: str, maker: RowMaker, tokenizer: Tokenizer) -> None:
    before, after = content.removeprefix("<think>").split("</think>")
    true = ids(tokenizer, before, CLOSE, after, END)
    row = the_row(maker, None, content, true=true)
    is_exact(row, true)
    assert "split_close_tag_in_content" in codes(row)


@pytest.mark.parametrize("field", ["content", "reasoning"])
@pytest.mark.parametrize("meant", [0, 1])
def test_of_two_close_tags_in_one_text_either_may_be_the_one_that_divides_it(
    field: str, meant: int, maker: RowMaker, tokenizer: Tokenizer
) -> None:
    parts = ["The tag ", " closes it.", " So I said."]
    true = ids(tokenizer, "</think>".join(parts[: meant + 1]), CLOSE, "</think>".join(parts[meant + 1 :]), END)
    row = the_row(maker, **{field: "</think>".join(parts)}, true=true)
    assert (row.evidence, row.status, row.reason) == ("text", "flag", "ambiguous_count")
    assert any(note.startswith("equal_count") for note in row.notes)
    spaced = the_row(maker, **{field: "A</think> b</think>c"}, true=ids(tokenizer, "A</think> b", CLOSE, "c", END))
    assert (spaced.status, spaced.reason) == ("flag", "literal_close_tag")


def test_tags_wrapped_around_the_reasoning_are_no_text(maker: RowMaker, tokenizer: Tokenizer) -> None:
    true = ids(tokenizer, "Think.", CLOSE, "Say.", END)
    is_exact(the_row(maker, "<think>Think.</think>", "Say.", true=true), true)
    is_exact(the_row(maker, "<think>Think.", "Say.", true=true), true)
    is_exact(the_row(maker, "Think.", "</think>Say.", true=true), true)
    is_exact(the_row(maker, "Think.</think>Say.", None, true=true), true)


@pytest.mark.parametrize("reasoning", ["One.Two.", "All of it"])
def test_an_answer_swallowed_by_the_reasoning_is_rejected_even_when_the_count_fits(
    reasoning: str, maker: RowMaker, tokenizer: Tokenizer
) -> None:
    row = the_row(maker, reasoning, None, billed=len(ids(tokenizer, reasoning, CLOSE, END)))
    assert row.status == "reject"
    assert codes(row) >= {"no_think_close", "empty_answer"}


@pytest.mark.parametrize(
    ("reasoning", "content", "code"),
    [
        ("Thinking is", None, "truncated_in_reasoning"),
        ("Thought.", "Saying is", "truncated_in_content"),
        ("Thought.", f"Now {SECTION[:-60]}", "truncated_in_tool_call"),
    ],
)
def test_a_cut_answer_has_no_end_and_says_where_it_was_cut(
    reasoning: str, content: str | None, code: str, maker: RowMaker
) -> None:
    row = the_row(maker, reasoning, content, finish="length")
    assert END not in unpack(row.completion)
    assert row.status == "flag"
    assert code in codes(row)


@pytest.mark.parametrize("lead", ["", "Let me look. ", "\n"])
def test_markers_in_content_are_what_the_bill_says(lead: str, maker: RowMaker, tokenizer: Tokenizer) -> None:
    special = ids(
        tokenizer, "Think.", CLOSE, lead, TOOLS, CALL, "functions.f:0", ARGS, '{"a": 1}', CALL_END, TOOLS_END, END
    )
    literal = ids(tokenizer, "Think.", CLOSE, lead + SECTION, END)
    row = the_row(maker, "Think.", lead + SECTION, true=special)
    is_exact(row, special)
    assert "markers_in_content_to_special_ids" in codes(row)
    row = the_row(maker, "Think.", lead + SECTION, true=literal)
    is_exact(row, literal)
    assert "literal_special_text" in codes(row)


def test_a_call_without_its_section_wrapper_keeps_what_was_there(maker: RowMaker, tokenizer: Tokenizer) -> None:
    bare = SECTION.removeprefix("<|tool_calls_section_begin|>").removesuffix("<|tool_calls_section_end|>")
    true = ids(tokenizer, "Think.", CLOSE, CALL, "functions.f:0", ARGS, '{"a": 1}', CALL_END, END)
    row = the_row(maker, "Think.", bare, true=true)
    assert unpack(row.completion) == true


@pytest.mark.parametrize("structured", [True, False])
def test_a_tool_section_without_think_close_is_kept_as_sampled_and_flagged(
    structured: bool, maker: RowMaker, tokenizer: Tokenizer
) -> None:
    true = ids(tokenizer, "Think.", TOOLS, CALL, "functions.f:0", ARGS, '{"a": 1}', CALL_END, TOOLS_END, END)
    calls = [call("f", '{"a": 1}', "functions.f:0")]
    row = (
        the_row(maker, "Think.", None, calls, true=true)
        if structured
        else the_row(maker, "Think." + SECTION, None, true=true)
    )
    is_exact(row, true, status="flag")
    assert "tool_section_inside_reasoning" in codes(row)


def test_calls_given_both_raw_and_structured_are_written_once(maker: RowMaker, tokenizer: Tokenizer) -> None:
    true = ids(tokenizer, "Think.", CLOSE, TOOLS, CALL, "functions.f:0", ARGS, '{"a": 1}', CALL_END, TOOLS_END, END)
    row = the_row(maker, "Think.", SECTION, [call("f", '{"a": 1}', "functions.f:0")], true=true)
    is_exact(row, true)
    assert "tool_calls_given_twice" in codes(row)


@pytest.mark.parametrize("content", ["Done.", "Done.\n"])
def test_only_a_terminator_at_the_very_end_is_dropped(content: str, maker: RowMaker, tokenizer: Tokenizer) -> None:
    true = ids(tokenizer, "Think.", CLOSE, content, END)
    row = the_row(maker, "Think.", content + "<|im_end|>", true=true)
    is_exact(row, true)
    assert "strip_trailing_terminator_text" in codes(row)
    inside = ids(tokenizer, "Think.", CLOSE, f"<|im_end|> ends {content}", END)
    is_exact(the_row(maker, "Think.", f"<|im_end|> ends {content}", true=inside), inside)


@pytest.mark.parametrize("given", ["3", "f:0", "functions.other:0"])
def test_an_id_that_the_model_may_have_written_itself_is_kept_when_the_bill_agrees(
    given: str, maker: RowMaker, tokenizer: Tokenizer
) -> None:
    true = ids(tokenizer, "Think.", CLOSE, TOOLS, CALL, given, ARGS, "{}", CALL_END, TOOLS_END, END)
    row = the_row(maker, "Think.", None, [call("f", "{}", given)], true=true)
    assert unpack(row.completion) == true
    assert (row.status, row.reason) == ("flag", "tool_id_not_native") or "ambiguous_count" in codes(row)


@pytest.mark.parametrize("given", ["call_9f2c0d7e41ab4c55a1d0e8b7", "chatcmpl-tool-0123456789abcdef", None, ""])
def test_an_id_that_a_server_made_is_replaced_and_never_called_certain(
    given: str | None, maker: RowMaker, tokenizer: Tokenizer
) -> None:
    true = ids(tokenizer, "Think.", CLOSE, TOOLS, CALL, "functions.f:0", ARGS, "{}", CALL_END, TOOLS_END, END)
    row = the_row(maker, "Think.", None, [call("f", "{}", given)], true=true)
    is_exact(row, true, evidence="text", status="flag")
    assert "tool_id_rewritten_by_server" in codes(row)


@pytest.mark.parametrize("arguments", ['"{\\"a\\": 1}"', "[1]", "null", "{broken", ""])
def test_arguments_that_are_no_object_stay_verbatim_and_are_flagged(
    arguments: str, maker: RowMaker, tokenizer: Tokenizer
) -> None:
    true = ids(tokenizer, "Think.", CLOSE, TOOLS, CALL, "functions.f:0", ARGS, arguments, CALL_END, TOOLS_END, END)
    row = the_row(maker, "Think.", None, [call("f", arguments, "functions.f:0")], true=true)
    assert unpack(row.completion) == true
    assert "arguments_not_an_object" in codes(row)


@pytest.mark.parametrize("value", ["東京", "café", "😀"])
def test_escapes_are_undone_only_when_the_bill_says_so(value: str, maker: RowMaker, tokenizer: Tokenizer) -> None:
    escaped = '{"q": "' + value.encode("utf-16-be").hex(" ", 2).replace(" ", "\\u").join(("\\u", "")) + '"}'
    if value == "café":
        escaped = '{"q": "caf\\u00e9"}'
    for arguments, status in ((f'{{"q": "{value}"}}', "flag"), (escaped, "accept")):
        true = ids(tokenizer, "Think.", CLOSE, TOOLS, CALL, "functions.f:0", ARGS, arguments, CALL_END, TOOLS_END, END)
        row = the_row(maker, "Think.", None, [call("f", escaped, "functions.f:0")], true=true)
        assert unpack(row.completion) == true
        assert row.status == status
        assert ("unescape_non_ascii" in codes(row)) == (status == "flag")


@pytest.mark.parametrize("extra", [1, 2, 5, -2])
def test_a_count_that_differs_is_never_accepted(extra: int, maker: RowMaker, tokenizer: Tokenizer) -> None:
    true = ids(tokenizer, "Think.", CLOSE, "Say.", END)
    row = the_row(maker, "Think.", "Say.", billed=len(true) + extra)
    is_exact(row, true, evidence="text", status="flag")
    assert row.count_delta == extra
    assert "count_mismatch" in codes(row)
    assert ("edge_whitespace_suspected" in codes(row)) == (0 < extra <= 2)


def test_without_a_bill_nothing_is_certain(maker: RowMaker) -> None:
    row = the_row(maker, "Think.", "Say.")
    assert (row.evidence, row.status, row.reason, row.count_delta) == ("text", "flag", "count_missing", None)


def test_undecodable_bytes_hide_ids_whatever_the_count(maker: RowMaker, tokenizer: Tokenizer) -> None:
    row = the_row(maker, "Think.", "Say \ufffd.", true=ids(tokenizer, "Think.", CLOSE, "Say \ufffd.", END))
    assert (row.evidence, row.status, row.reason) == ("text", "flag", "replacement_character")


def test_several_choices_share_a_bill_that_their_sum_must_meet(maker: RowMaker, tokenizer: Tokenizer) -> None:
    value = body("Think.", "Say.")
    value["choices"].append(
        {"index": 1, "message": {"reasoning": "More.", "content": "Words here."}, "finish_reason": "stop"}
    )
    total = sum(
        len(ids(tokenizer, *pieces))
        for pieces in (("Think.", CLOSE, "Say.", END), ("More.", CLOSE, "Words here.", END))
    )
    for billed, status, evidence in ((total, "accept", "count"), (total + 1, "flag", "text")):
        value["usage"] = {"completion_tokens": billed}
        first, second = rows_of(maker, value)
        assert (first.id, second.id) == ("r0", "r0#1")
        assert [(row.status, row.evidence) for row in (first, second)] == [(status, evidence)] * 2


@pytest.mark.parametrize("empty", ["", None])
def test_an_answer_of_nothing_is_rejected(empty: str | None, maker: RowMaker) -> None:
    assert the_row(maker, empty, empty, billed=0).reason == "empty_zero_tokens"
    assert the_row(maker, empty, empty, billed=2).reason == "empty_answer"


def test_an_answer_without_reasoning_closes_it_at_once(maker: RowMaker, tokenizer: Tokenizer) -> None:
    true = ids(tokenizer, CLOSE, "Say.", END)
    is_exact(the_row(maker, None, "Say.", true=true), true)


def test_segments_cover_the_answer_and_name_its_parts(maker: RowMaker, tokenizer: Tokenizer) -> None:
    row = the_row(maker, "Think.", "Say.", [call("f", '{"a": 1}', "functions.f:0")], finish="tool_calls")
    got = unpack(row.completion)
    kinds = [span.kind for span in row.spans]
    assert kinds == [
        "reasoning",
        "think_close",
        "content",
        "tools_open",
        "call_open",
        "call_id",
        "call_args_open",
        "call_args",
        "call_close",
        "tools_close",
        "end",
    ]
    assert [token for span in row.spans for token in got[span.start : span.end]] == got
    texts = {span.kind: tokenizer.decode_bytes(got[span.start : span.end]).decode() for span in row.spans}
    assert (texts["reasoning"], texts["content"], texts["call_id"], texts["call_args"]) == (
        "Think.",
        "Say.",
        "functions.f:0",
        '{"a": 1}',
    )


def test_two_texts_for_the_reasoning_are_told_apart_by_the_bill_or_not_at_all(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    def row(first: str, second: str, billed: int) -> PackedRow:
        value = body(first, "Say.", billed=billed)
        value["choices"][0]["message"]["reasoning_content"] = second
        return rows_of(maker, value)[0]

    short, long = ids(tokenizer, "One.", CLOSE, "Say.", END), ids(tokenizer, "One and two.", CLOSE, "Say.", END)
    is_exact(row("One.", "One and two.", len(long)), long)
    is_exact(row("One.", "One and two.", len(short)), short)
    same = row("One.", "Two.", len(short))
    assert (same.evidence, same.status, same.reason) == ("text", "flag", "ambiguous_count")
    assert any(note.startswith("equal_count") for note in same.notes)
