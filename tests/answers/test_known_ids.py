"""Ids that came with an answer: the fields that hold them, and the reasons to believe them or not."""

from typing import Any

import pytest

from pipeline.answers.lines import Job
from pipeline.answers.readings.markers import Markers
from pipeline.answers.rows import PackedRow, RowMaker
from pipeline.answers.rungs.logprobs import Vocabulary, read_logprobs
from pipeline.answers.rungs.returned_ids import spans_of
from pipeline.answers.segmented_ids import unpack
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.answers.build import ARGS, CALL, CALL_END, CLOSE, END, TOOLS, TOOLS_END, body, call, codes
from tests.answers.test_properties import true_bytes

HAV, ING = 53791, 288


@pytest.fixture(scope="module")
def true(tokenizer: Tokenizer) -> list[int]:
    """`I am having fun.`, cut as no tokenizer would."""
    return [*tokenizer.encode("Think."), CLOSE, *tokenizer.encode("I am"), HAV, ING, *tokenizer.encode(" fun."), END]


def row_of(maker: RowMaker, value: Any) -> PackedRow:
    return maker.rows([Job("x", value)], {})[0]


@pytest.mark.parametrize(
    "place",
    [
        lambda value, ids: value["choices"][0].update(token_ids=ids),
        lambda value, ids: value["choices"][0].update(response_token_ids=ids),
        lambda value, ids: value.update(sglext={"output_ids": [ids]}),
        lambda value, ids: value["choices"][0].update(raw_output={"completion_token_ids": ids}),
        lambda value, ids: value["choices"][0].update(
            logprobs={"content": [{"token": f"token_id:{token}"} for token in ids]}
        ),
        lambda value, ids: value["choices"][0].update(
            logprobs={"content": [{"token": "?", "token_id": token} for token in ids]}
        ),
        lambda value, ids: value["choices"][0].update(logprobs={"token_ids": ids, "tokens": ["?"] * len(ids)}),
        lambda value, ids: value.update(output_ids=ids),
    ],
    ids=[
        "vllm",
        "sglang",
        "sglext",
        "fireworks raw",
        "vllm logprobs",
        "fireworks logprobs",
        "together logprobs",
        "truth line",
    ],
)
def test_ids_are_found_wherever_servers_put_them(place: Any, true: list[int], maker: RowMaker) -> None:
    value = body("Think.", "I am having fun.", billed=len(true))
    place(value, true)
    row = row_of(maker, value)
    assert (unpack(row.completion), row.evidence, row.status, row.count_delta) == (true, "ids", "accept", 0)


def test_ids_that_say_something_else_are_noted_and_the_next_rung_is_taken(
    true: list[int], maker: RowMaker, tokenizer: Tokenizer
) -> None:
    canonical = [*tokenizer.encode("Think."), CLOSE, *tokenizer.encode("I am sad."), END]
    row = row_of(maker, body("Think.", "I am sad.", billed=len(canonical), token_ids=true))
    assert (unpack(row.completion), row.evidence) == (canonical, "count")
    assert "ids_disagree_with_text" in codes(row)


@pytest.mark.parametrize("shown", ["", "{}", " "])
def test_a_call_without_arguments_is_a_call(shown: str, maker: RowMaker, tokenizer: Tokenizer) -> None:
    name = tokenizer.encode("functions.f:0")
    emitted = [*tokenizer.encode("Think."), CLOSE, TOOLS, CALL, *name, ARGS, CALL_END, TOOLS_END, END]
    calls = [call("f", shown, "functions.f:0")]
    row = row_of(maker, body("Think.", None, calls, billed=len(emitted), finish="tool_calls", token_ids=emitted))
    assert (unpack(row.completion), row.evidence, row.status) == (emitted, "ids", "accept")
    cut = emitted[: emitted.index(ARGS) - 1]
    row = row_of(
        maker, body("Think.", None, [call("f", "", "functions.f:")], billed=len(cut), finish="length", token_ids=cut)
    )
    assert (unpack(row.completion), row.evidence, row.reason) == (cut, "ids", "truncated_in_tool_call")
    other = row_of(
        maker,
        body(
            "Think.", None, [call("f", '{"a": 1}', "functions.f:0")], billed=99, finish="tool_calls", token_ids=emitted
        ),
    )
    assert "ids_disagree_with_text" in codes(other)


@pytest.mark.parametrize(
    ("bad", "code"), [(163850, "id_out_of_range"), (-1, "id_out_of_range"), (163589, "reserved_id")]
)
def test_impossible_ids_are_rejected_with_their_place(bad: int, code: str, true: list[int], maker: RowMaker) -> None:
    row = row_of(maker, body("Think.", "I am having fun.", token_ids=[*true[:3], bad, *true[3:]]))
    assert (row.status, row.reason) == ("reject", code)
    assert any("position 3" in note and str(bad) in note for note in row.notes)


@pytest.mark.parametrize("value", ["163586", [1.5], [True], {"a": 1}, [[1]]])
def test_ids_that_are_no_list_of_ids_are_passed_over(value: Any, maker: RowMaker, tokenizer: Tokenizer) -> None:
    true = [*tokenizer.encode("Think."), CLOSE, *tokenizer.encode("Say."), END]
    row = row_of(maker, body("Think.", "Say.", billed=len(true), token_ids=value))
    assert (unpack(row.completion), row.evidence) == (true, "count")
    assert "ids_not_a_list" in codes(row)


@pytest.mark.parametrize(
    ("reasoning", "content"),
    [
        ("Think.", "I am having fun."),
        ("Think.", "I am having fun.\n"),
        ("Think. ", " I am having fun."),
        (None, "Think.</think>I am having fun."),
        ("Think.</think>I am having fun.", None),
    ],
)
def test_white_space_and_tags_that_servers_touch_do_not_contradict_the_ids(
    reasoning: str | None, content: str | None, true: list[int], maker: RowMaker
) -> None:
    row = row_of(maker, body(reasoning, content, billed=len(true), token_ids=true))
    assert (unpack(row.completion), row.evidence) == (true, "ids")


def test_a_stray_special_token_that_the_text_leaves_out_is_kept(maker: RowMaker, tokenizer: Tokenizer) -> None:
    stray = [*tokenizer.encode("Think."), CLOSE, *tokenizer.encode("One"), TOOLS_END, *tokenizer.encode(" two."), END]
    row = row_of(maker, body("Think.", "One two.", billed=len(stray), token_ids=stray))
    assert (unpack(row.completion), row.evidence) == (stray, "ids")
    assert [span.kind for span in row.spans] == ["reasoning", "think_close", "content", "special", "content", "end"]


def test_calls_that_a_server_renamed_or_wrote_anew_do_not_contradict_the_ids(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    ids = [
        *tokenizer.encode("Think."),
        CLOSE,
        TOOLS,
        CALL,
        *tokenizer.encode("functions.f:0"),
        ARGS,
        *tokenizer.encode('{"a":1}'),
        CALL_END,
        TOOLS_END,
        END,
    ]
    for arguments in ('{"a":1}', '{"a": 1}'):
        row = row_of(maker, body("Think.", None, [call("f", arguments, "call_1")], finish="tool_calls", token_ids=ids))
        assert (unpack(row.completion), row.evidence, row.status) == (ids, "ids", "accept")
    row = row_of(maker, body("Think.", None, [call("f", '{"a": 2}', "call_1")], finish="tool_calls", token_ids=ids))
    assert row.evidence != "ids"


def test_raw_reasoning_behind_a_summary_is_known_from_ids(true: list[int], maker: RowMaker) -> None:
    value = body("Think.", "I am having fun.", token_ids=true)
    value["choices"][0]["message"]["reasoning_details"] = [{"type": "reasoning.encrypted", "data": "x"}]
    assert row_of(maker, value).status == "accept"
    del value["choices"][0]["token_ids"]
    assert "reasoning_not_raw" in codes(row_of(maker, value))


def test_the_end_token_is_added_when_the_bill_says_that_only_it_is_missing(
    true: list[int], maker: RowMaker, tokenizer: Tokenizer
) -> None:
    entries = {"content": true_bytes(true[:-1], tokenizer)}
    row = row_of(maker, body("Think.", "I am having fun.", billed=len(true), logprobs=entries))
    assert (unpack(row.completion), row.evidence, row.status) == (true, "logprobs", "accept")
    assert "end_token_from_finish_reason" in codes(row)
    row = row_of(maker, body("Think.", "I am having fun.", billed=len(true) - 1, logprobs=entries))
    assert (row.status, row.reason) == ("flag", "no_end_token")


def test_logprobs_of_the_content_alone_are_used_where_they_cover(
    true: list[int], maker: RowMaker, tokenizer: Tokenizer
) -> None:
    covered = true[true.index(CLOSE) + 1 :]
    row = row_of(
        maker,
        body("Think.", "I am having fun.", billed=len(true), logprobs={"content": true_bytes(covered, tokenizer)}),
    )
    assert (unpack(row.completion), row.evidence, row.status) == (true, "count", "accept")
    assert "logprobs_partial" in codes(row)


def test_logprobs_of_reasoning_and_content_in_two_lists_are_joined(
    true: list[int], maker: RowMaker, tokenizer: Tokenizer
) -> None:
    cut = true.index(CLOSE) + 1
    entries = {"reasoning_content": true_bytes(true[:cut], tokenizer), "content": true_bytes(true[cut:], tokenizer)}
    row = row_of(maker, body("Think.", "I am having fun.", billed=len(true), logprobs=entries))
    assert (unpack(row.completion), row.evidence) == (true, "logprobs")


def test_a_run_without_bytes_is_known_only_when_one_way_fits(kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary(kimi, tokenizer)
    for char in "😀𐍈我é":
        raw = char.encode()
        for parts in range(2, len(raw) + 1):
            ways = list(vocabulary.splits(raw, parts))
            entries = [{"token": "", "bytes": []}] * (parts - 1) + [{"token": char, "bytes": list(raw)}]
            (found,) = read_logprobs({"content": entries}, vocabulary)
            assert found.certain() == (list(ways[0]) if len(ways) == 1 else None)


@pytest.mark.parametrize(
    ("ids", "kinds"),
    [
        ([5, CLOSE, 6, END], ["reasoning", "think_close", "content", "end"]),
        (
            [5, TOOLS, CALL, 6, ARGS, 7, CALL_END, TOOLS_END, END],
            [
                "reasoning",
                "tools_open",
                "call_open",
                "call_id",
                "call_args_open",
                "call_args",
                "call_close",
                "tools_close",
                "end",
            ],
        ),
        (
            [CLOSE, CALL, 6, ARGS, 7, CALL_END, END],
            ["think_close", "call_open", "call_id", "call_args_open", "call_args", "call_close", "end"],
        ),
        ([CLOSE, CALL, 6, END], ["think_close", "special", "content", "end"]),
        ([5, CALL_END, 6, CLOSE, END], ["reasoning", "special", "reasoning", "think_close", "end"]),
        ([5], ["reasoning"]),
    ],
)
def test_spans_follow_from_the_ids_alone(ids: list[int], kinds: list[str], kimi: TargetRecord) -> None:
    segmented = spans_of(ids, kimi, Markers(kimi), "open")
    assert [span.kind for span in segmented.spans] == kinds
    assert [(span.start, span.end) for span in segmented.spans] == list(
        zip([0, *(s.end for s in segmented.spans[:-1])], [s.end for s in segmented.spans], strict=True)
    )
