"""Shapes of bodies beyond the usual ones: each says the same answer, and must give the same ids."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.answers.lines import Job, file_job
from pipeline.answers.rows import PackedRow, RowMaker
from pipeline.answers.segmented_ids import unpack
from pipeline.core.files.json_file import to_json
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.answers.build import CLOSE, END
from tests.conftest import ROOT

REASONING, CONTENT = "The user wants the temperature in Oslo.", "It is 7 degrees in Oslo."
ARGUMENTS = '{"city": "Oslo"}'
CALL = {
    "id": "functions.get_weather:0",
    "type": "function",
    "function": {"name": "get_weather", "arguments": ARGUMENTS},
}
RAW_CALL = f"<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>"
RAW = f"<|tool_calls_section_begin|>{RAW_CALL}<|tool_calls_section_end|>"

ANSWERS: dict[str, dict[str, Any]] = {
    "two fragments by index": {
        "content": CONTENT,
        "reasoning_details": [
            {"type": "reasoning.text", "text": REASONING[:4], "index": 0},
            {"type": "reasoning.text", "text": REASONING[4:], "index": 1},
        ],
    },
    "fragment without a type": {"content": CONTENT, "reasoning_details": [{"text": REASONING}]},
    "thinking block": {
        "content": CONTENT,
        "reasoning_details": [{"type": "thinking", "thinking": REASONING, "signature": "x"}],
    },
    "details of nulls": {
        "content": CONTENT,
        "reasoning": REASONING,
        "reasoning_details": [None, {"type": "reasoning.text", "text": None}, 7],
    },
    "thinking part in content": {
        "content": [{"type": "thinking", "thinking": REASONING}, {"type": "text", "text": CONTENT}]
    },
    "thinking part of parts": {
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": REASONING}]},
            {"type": "text", "text": CONTENT},
        ]
    },
    "content as one part": {"reasoning": REASONING, "content": {"type": "text", "text": CONTENT}},
    "white space before the opening tag": {"content": f"\n<think>{REASONING}</think>{CONTENT}"},
    "white space around wrapped reasoning": {"reasoning": f" <think>{REASONING}</think>\n", "content": CONTENT},
    "reasoning once more in content": {"reasoning": REASONING, "content": f"<think>{REASONING}</think>{CONTENT}"},
    "reasoning once more without its opening tag": {"reasoning": REASONING, "content": f"{REASONING}</think>{CONTENT}"},
    "terminator and a newline": {"reasoning": REASONING, "content": f"{CONTENT}<|im_end|>\n"},
    "two terminators": {"reasoning": REASONING, "content": f"{CONTENT}<|im_end|><|im_end|>"},
}

CALLS: dict[str, dict[str, Any]] = {
    "name and arguments beside the id": {
        "content": None,
        "tool_calls": [{"id": CALL["id"], "name": "get_weather", "arguments": ARGUMENTS}],
    },
    "one call that is no list": {"content": None, "tool_calls": CALL},
    "raw and structured": {"content": RAW, "tool_calls": [CALL]},
    "raw behind the close in reasoning, and structured": {
        "content": None,
        "reasoning": f"{REASONING}</think>{RAW}",
        "tool_calls": [CALL],
    },
    "raw, the section's markers dropped": {"content": RAW_CALL},
    "raw, the section's end dropped": {"content": RAW.removesuffix("<|tool_calls_section_end|>")},
    "raw and a terminator": {"content": f"{RAW}<|im_end|>"},
}


def completion(message: dict[str, Any], billed: int, **choice: Any) -> dict[str, Any]:
    return {
        "choices": [{"index": 0, "finish_reason": "stop", "message": message, **choice}],
        "usage": {"completion_tokens": billed},
    }


def row_of(maker: RowMaker, value: Any) -> PackedRow:
    return maker.rows([Job("x", value)], {})[0]


@pytest.fixture(scope="module")
def answer(tokenizer: Tokenizer) -> list[int]:
    return [*tokenizer.encode(REASONING), CLOSE, *tokenizer.encode(CONTENT), END]


@pytest.fixture(scope="module")
def called(tokenizer: Tokenizer) -> list[int]:
    section = [
        163595,
        163597,
        *tokenizer.encode("functions.get_weather:0"),
        163598,
        *tokenizer.encode(ARGUMENTS),
        163599,
        163596,
    ]
    return [*tokenizer.encode(REASONING), CLOSE, *section, END]


@pytest.mark.parametrize("message", ANSWERS.values(), ids=ANSWERS)
def test_the_same_answer_in_other_shapes(maker: RowMaker, answer: list[int], message: dict[str, Any]) -> None:
    row = row_of(maker, completion(message, len(answer)))
    assert (unpack(row.completion), row.status, row.evidence) == (answer, "accept", "count")


@pytest.mark.parametrize("message", CALLS.values(), ids=CALLS)
def test_the_same_call_in_other_shapes(maker: RowMaker, called: list[int], message: dict[str, Any]) -> None:
    row = row_of(maker, completion({"reasoning": REASONING, **message}, len(called)))
    assert (unpack(row.completion), row.status, row.evidence) == (called, "accept", "count")


def test_a_section_that_was_emitted_without_its_markers_gets_none(maker: RowMaker, called: list[int]) -> None:
    bare = [token for token in called if token not in (163595, 163596)]
    row = row_of(maker, completion({"reasoning": REASONING, "content": RAW_CALL}, len(bare)))
    assert (unpack(row.completion), row.status, row.reason) == (bare, "flag", "tool_section_unclosed")


IDS: dict[str, Callable[[list[int]], dict[str, Any]]] = {
    "in the message": lambda ids: completion({"reasoning": REASONING, "content": CONTENT, "token_ids": ids}, len(ids)),
    "beside the choices": lambda ids: {
        **completion({"reasoning": REASONING, "content": CONTENT}, len(ids)),
        "token_ids": ids,
    },
    "an engine's own route": lambda ids: {
        "text": f"{REASONING}</think>{CONTENT}",
        "output_ids": ids,
        "meta_info": {"completion_tokens": len(ids), "finish_reason": {"type": "stop", "matched": END}},
    },
    "logprobs of an engine's own route": lambda ids: {
        "text": f"{REASONING}</think>{CONTENT}",
        "meta_info": {
            "completion_tokens": len(ids),
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": [[-0.1, token, None] for token in ids],
        },
    },
}


@pytest.mark.parametrize("make", IDS.values(), ids=IDS)
def test_ids_are_found_wherever_they_stand(
    maker: RowMaker, answer: list[int], make: Callable[[list[int]], dict[str, Any]]
) -> None:
    row = maker.rows([file_job(1, to_json(make(answer)))], {})[0]
    assert (unpack(row.completion), row.status, row.evidence, row.finish_reason) == (answer, "accept", "ids", "stop")


def test_logprobs_of_text_completions_name_tokens_by_their_text(
    maker: RowMaker, tokenizer: Tokenizer, answer: list[int]
) -> None:
    logprobs = {"tokens": [tokenizer.show(token) for token in answer], "token_logprobs": [-0.1] * len(answer)}
    row = row_of(maker, completion({"reasoning": REASONING, "content": CONTENT}, len(answer), logprobs=logprobs))
    assert (unpack(row.completion), row.evidence) == (answer, "logprobs")


def test_fragments_whose_order_and_index_disagree_are_not_believed_on_a_count(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    fragments = [
        {"type": "reasoning.text", "text": " world", "index": 1},
        {"type": "reasoning.text", "text": "Hello", "index": 0},
    ]
    billed = len(tokenizer.encode("Hello world")) + len(tokenizer.encode(CONTENT)) + 2
    row = row_of(maker, completion({"content": CONTENT, "reasoning_details": fragments}, billed))
    assert row.spans[0].kind == "reasoning"
    assert tokenizer.decode_bytes(unpack(row.completion)[: row.spans[0].end]) == b"Hello world"
    assert (row.status, row.reason) == ("flag", "ambiguous_count")


@pytest.mark.parametrize(
    "block", [{"type": "redacted_thinking", "data": "QUJD"}, {"type": "reasoning.summary", "summary": "S"}]
)
def test_reasoning_that_nobody_can_read_rejects_the_row_in_details_and_in_content(
    maker: RowMaker, block: dict[str, Any]
) -> None:
    for message in (
        {"content": CONTENT, "reasoning_details": [block]},
        {"content": [block, {"type": "text", "text": CONTENT}]},
    ):
        row = row_of(maker, completion(message, 20))
        assert (row.status, (row.reason or "").split(", ")[0]) == ("reject", "reasoning_not_raw")


def test_choices_and_calls_are_taken_by_their_index(maker: RowMaker, tokenizer: Tokenizer) -> None:
    choices = [
        {"index": n, "finish_reason": "stop", "message": {"reasoning": "a", "content": f"Answer {n}."}} for n in (1, 0)
    ]
    first, second = maker.rows([Job("x", {"choices": choices})], {})
    assert [row.id for row in (first, second)] == ["x", "x#1"]
    assert b"Answer 0." in tokenizer.decode_bytes(unpack(first.completion))
    calls = [{"index": n, "id": f"functions.f:{n}", "function": {"name": "f", "arguments": "{}"}} for n in (1, 0)]
    row = row_of(maker, completion({"reasoning": REASONING, "tool_calls": calls}, 30))
    ids = [tokenizer.decode_bytes(unpack(row.completion)[s.start : s.end]) for s in row.spans if s.kind == "call_id"]
    assert ids == [b"functions.f:0", b"functions.f:1"]


BATCH = (ROOT / "tests/data/cases/batch_form.jsonl").read_bytes()


def test_a_line_of_a_batchs_output_is_read_under_its_custom_id(maker: RowMaker, tokenizer: Tokenizer) -> None:
    (row,) = maker.rows([file_job(1, BATCH)], {})
    assert (row.id, row.status, row.evidence, row.provider) == ("p-7", "accept", "count", "P")
    assert unpack(row.completion) == [*tokenizer.encode("Two plus two."), CLOSE, *tokenizer.encode("4"), END]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"response": {"status_code": 400, "body": {"error": {"message": "long"}}}}, "provider_error: status_code 400"),
        ({"response": {"status_code": 500, "body": None}}, "provider_error: status_code 500"),
        (
            {"response": None, "error": {"code": "batch_expired", "message": "late"}},
            "provider_error: batch_expired: late",
        ),
    ],
)
def test_a_request_that_failed_in_a_batch_is_a_rejected_row(
    maker: RowMaker, changes: dict[str, Any], note: str
) -> None:
    (row,) = maker.rows([file_job(1, to_json({**json.loads(BATCH), **changes}))], {})
    assert (row.id, row.status, row.reason) == ("p-7", "reject", "provider_error")
    assert note in row.notes


def test_a_response_given_as_json_text_is_read(maker: RowMaker, answer: list[int]) -> None:
    body = completion({"reasoning": REASONING, "content": CONTENT}, len(answer))
    (row,) = maker.rows([file_job(1, to_json({"id": "a", "response": json.dumps(body)}))], {})
    assert (row.id, unpack(row.completion), row.status) == ("a", answer, "accept")


@pytest.mark.parametrize("extra", [{}, {"total_tokens": 64}, {"total_tokens": 82}])
def test_reasoning_beside_the_completion_is_the_rebuilt_count(
    maker: RowMaker, tokenizer: Tokenizer, answer: list[int], extra: dict[str, Any]
) -> None:
    beside = len(tokenizer.encode(CONTENT))
    usage = {
        "prompt_tokens": 64,
        "completion_tokens": beside,
        "completion_tokens_details": {"reasoning_tokens": len(answer) - beside},
    }
    row = row_of(maker, {**completion({"reasoning": REASONING, "content": CONTENT}, 0), "usage": {**usage, **extra}})
    assert (unpack(row.completion), row.status, row.evidence) == (answer, "accept", "count")
    assert "usage_disjoint" in row.notes
