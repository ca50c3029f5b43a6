"""Bodies of every shape to typed answers; no shape raises."""

import copy
import random
from typing import Any

import pytest

from pipeline.answers.lines import Job
from pipeline.answers.rows import RowMaker
from pipeline.formats.completion.body import parse_body
from pipeline.formats.completion.usage import read_usage
from tests.answers.build import body, call
from tests.conftest import SHARE


@pytest.mark.parametrize(
    ("message", "reasoning"),
    [
        ({"reasoning": "a"}, "a"),
        ({"reasoning_content": "a"}, "a"),
        ({"reasoning": None, "reasoning_content": "a"}, "a"),
        ({"reasoning": "a", "reasoning_content": "a"}, "a"),
        (
            {"reasoning_details": [{"type": "reasoning.text", "text": "a"}, {"type": "reasoning.text", "text": " b"}]},
            "a b",
        ),
        (
            {
                "reasoning": "a b",
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "a"},
                    {"type": "reasoning.text", "text": " b"},
                ],
            },
            "a b",
        ),
        ({}, ""),
        ({"reasoning": ""}, ""),
    ],
)
def test_the_reasoning_is_found_in_every_field_and_taken_once(message: dict[str, Any], reasoning: str) -> None:
    (answer,) = parse_body({"choices": [{"message": {"content": "x", **message}, "finish_reason": "stop"}]}).answers
    assert answer.reasoning == reasoning
    assert answer.other_reasoning is None
    assert answer.rejects == ()


def test_two_fields_that_contradict_each_other_are_both_kept() -> None:
    (answer,) = parse_body(
        body("a", "x") | {"choices": [{"message": {"reasoning": "a", "reasoning_content": "b"}}]}
    ).answers
    assert (answer.reasoning, answer.other_reasoning) == ("a", "b")


@pytest.mark.parametrize("kind", ["reasoning.summary", "reasoning.encrypted"])
def test_reasoning_that_others_wrote_or_nobody_can_read_is_not_raw(kind: str) -> None:
    value = body("short", "x")
    value["choices"][0]["message"]["reasoning_details"] = [
        {"type": "reasoning.text", "text": "short"},
        {"type": kind, "data": "?"},
    ]
    assert parse_body(value).answers[0].rejects == ("reasoning_not_raw",)


@pytest.mark.parametrize(
    ("word", "native", "finish"),
    [
        ("stop", None, "stop"),
        ("tool_calls", "stop", "stop"),
        ("length", None, "length"),
        ("stop", "MAX_TOKENS", "length"),
        (None, "eos", "stop"),
        (None, None, "unknown"),
        ("strange", None, "unknown"),
    ],
)
def test_how_the_answer_ended(word: str | None, native: str | None, finish: str) -> None:
    value = body("a", "x", finish=word, native_finish_reason=native)
    assert parse_body(value).answers[0].finish == finish


@pytest.mark.parametrize(
    ("usage", "tokens", "notes"),
    [
        ({"completion_tokens": 9}, 9, ()),
        ({"completion_tokens": 9.0}, 9, ()),
        (
            {
                "completion_tokens": 9,
                "prompt_tokens": 64,
                "total_tokens": 82,
                "completion_tokens_details": {"reasoning_tokens": 9},
            },
            18,
            ("usage_disjoint",),
        ),
        (
            {
                "completion_tokens": 18,
                "prompt_tokens": 64,
                "total_tokens": 82,
                "completion_tokens_details": {"reasoning_tokens": 9},
            },
            18,
            (),
        ),
        (
            {
                "completion_tokens": 18,
                "prompt_tokens": 64,
                "total_tokens": 82,
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
            18,
            (),
        ),
        ({"prompt_tokens": 64, "total_tokens": 82}, 18, ("billed_as_total_minus_prompt",)),
        ({"completion_tokens": True}, None, ("count_unusable: completion_tokens is true",)),
        ({"completion_tokens": -1.5}, None, ("count_unusable: completion_tokens is -1.5",)),
        ({"output_tokens": "nine"}, None, ('count_unusable: output_tokens is the text "nine"',)),
        ({"completion_tokens": 1 << 40}, None, ("count_unusable: completion_tokens is 1099511627776",)),
        (
            {"completion_tokens": "9x", "prompt_tokens": 4, "total_tokens": 9},
            5,
            ('count_unusable: completion_tokens is the text "9x"', "billed_as_total_minus_prompt"),
        ),
        ({"completion_tokens": None}, None, ()),
        (None, None, ()),
        ([], None, ("count_unusable: usage is an empty array",)),
    ],
)
def test_the_bill_counts_reasoning_in_whatever_the_servers_habit(
    usage: Any, tokens: int | None, notes: tuple[str, ...]
) -> None:
    bill = read_usage(usage).bill
    assert (bill.tokens, bill.notes) == (tokens, notes)


def test_arguments_are_kept_byte_for_byte_and_an_object_is_marked() -> None:
    odd = '{ "a":1.0 ,"a" : 1e1}\n'
    calls = parse_body(body("a", None, [call("f", odd, "functions.f:0"), call("g", {"b": "é"}, None)])).answers[0].calls
    assert (calls[0].arguments, calls[0].raw) == (odd, True)
    assert (calls[1].arguments, calls[1].raw, calls[1].id) == ('{"b": "é"}', False, "")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "not_a_completion"),
        (3, "not_a_completion"),
        ({}, "not_a_completion"),
        ({"choices": []}, "not_a_completion"),
        ({"choices": [3]}, "not_a_completion"),
        ({"choices": [{"message": "text"}]}, "not_a_completion"),
        ({"error": {"code": 502}}, "provider_error"),
        ({"error": "busy", "choices": []}, "provider_error"),
        ({"choices": [{"message": {"content": [{"type": "image"}]}}]}, "content_not_text"),
        ({"choices": [{"message": {"content": 5}}]}, "content_not_text"),
        ({"choices": [{"message": {"tool_calls": {"a": 1}}}]}, "tool_call_malformed"),
        ({"choices": [{"message": {"tool_calls": [{"function": {"name": None}}]}}]}, "tool_call_malformed"),
        ({"choices": [{"message": {"content": None, "refusal": "I cannot."}, "finish_reason": "stop"}]}, "refusal"),
        ({"choices": [{"message": {"content": "x"}, "finish_reason": "content_filter"}]}, "content_filter"),
        ({"choices": [{"message": {"content": "\ud83d"}, "finish_reason": "stop"}]}, "text_not_utf8"),
        ({"choices": [{"message": {"content": "x", "reasoning": "\udc00"}, "finish_reason": "stop"}]}, "text_not_utf8"),
    ],
)
def test_what_is_no_answer_is_rejected_by_name(value: Any, code: str, maker: RowMaker) -> None:
    (row,) = maker.rows([Job("x", value)], {})
    assert row.status == "reject"
    assert code in (row.reason or "").split(", ")


@pytest.mark.parametrize(
    ("value", "note"),
    [
        ([1, 2], "not_a_completion: the body is an array of 2"),
        ("x" * 99 + "\n", f'not_a_completion: the body is the text "{"x" * 40}..."'),
        ({}, "not_a_completion: the body is an empty object"),
        ({f"k\n{n}\ud800": n for n in range(9)}, "and 3 more"),
        ({"choices": {}}, "not_a_completion: `choices` is an empty object"),
        ({"choices": [True]}, "not_a_completion: the choice is true"),
        (
            {"choices": [{"delta": {}, "index": 0}]},
            'not_a_completion: the choice is an object with the keys "delta", "index"',
        ),
        ({"choices": [{"message": [[[]]]}]}, "not_a_completion: `message` is an array of 1"),
        (
            {"choices": [{"message": {"content": [{"type": "image"}]}}]},
            'content_not_text: a text is needed, found is an object with the keys "type"',
        ),
        ({"choices": [{"message": {"tool_calls": [7]}}]}, "tool_call_malformed: the call is 7"),
    ],
)
def test_a_rejected_row_says_what_was_found(value: Any, note: str, maker: RowMaker) -> None:
    (row,) = maker.rows([Job("x", value)], {})
    (said,) = [found for found in row.notes if note in found]
    assert len(said) < 400
    assert said.isprintable()


def test_a_count_that_is_none_is_noted_beside_the_missing_count(maker: RowMaker) -> None:
    (row,) = maker.rows([Job("x", {**body("Think.", "Say."), "usage": {"completion_tokens": "12?"}})], {})
    assert row.reason == "count_missing"
    assert 'count_unusable: completion_tokens is the text "12?"' in row.notes


def test_a_text_completion_and_content_in_parts_are_read() -> None:
    assert parse_body({"choices": [{"text": "x", "finish_reason": "stop"}]}).answers[0].content == "x"
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": " y"}]
    assert parse_body({"choices": [{"message": {"content": parts}}]}).answers[0].content == "x y"


RICH = {
    **body(
        "Think.<|im_end|>",
        "Say </think> it.",
        [call("f", '{"a": 1}', "functions.f:0")],
        billed=20,
        token_ids=[1, 2, 163607, 3, 163586],
    ),
    "sglext": {"output_ids": [[1, 2]], "input_ids": [5]},
    "prompt_token_ids": [1, 2, 3],
}
RICH["choices"][0]["logprobs"] = {
    "content": [{"token": "a", "bytes": [97], "top_logprobs": []}, {"token": "", "bytes": []}]
}
RICH["choices"].append(copy.deepcopy(RICH["choices"][0]))
PARTS = body("", "", billed=20)
PARTS["choices"][0]["message"] = {
    "content": [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Th"}]},
        {"type": "text", "text": "Say<|im_end|>\n"},
    ],
    "reasoning_details": [
        {"type": "reasoning.text", "text": "ink", "index": 1},
        {"type": "reasoning.text", "text": "Th", "index": 0},
    ],
    "tool_calls": [
        {"index": 1, "id": "x", "name": "f", "arguments": "{}"},
        {"index": 0, "id": "functions.f:0", "function": {"name": "f", "arguments": {}}},
    ],
    "token_ids": [1, 2],
}
PARTS["choices"][0] |= {
    "usage": {"output_tokens": 9},
    "logprobs": {"tokens": ["a", "b"], "reasoning": [{"token": "token_id:5"}]},
}
NATIVE = {
    "text": "a</think>b",
    "output_ids": [1, 2],
    "meta_info": {"finish_reason": {"type": "stop"}, "completion_tokens": 2, "output_token_logprobs": [[-1, 5, "a"]]},
}
JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1 << 70,
    "",
    "x",
    "<|im_end|>",
    "\ud800",
    [],
    [[]],
    {},
    {"a": None},
    [None],
    "length",
    "error",
    float("nan"),
]


def mutated(value: Any, rng: random.Random) -> Any:
    """A copy with one to three places replaced, removed or doubled."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        place: Any = value
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(place[key], dict | list) and rng.random() < 0.8:
                place = place[key]
                continue
            if rng.random() < 0.2:
                del place[key]
            elif rng.random() < 0.1 and isinstance(place, list):
                place.append(copy.deepcopy(place[key]))
            else:
                place[key] = copy.deepcopy(rng.choice(JUNK))
            break
    return value


def fuzz(maker: RowMaker, count: int, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(count):
        value = mutated((RICH, PARTS, NATIVE)[number % 3], rng)
        rows = maker.rows([Job(str(number), value)], {})
        assert rows
        for row in rows:
            assert (row.status == "reject") == (not row.completion), (value, row)
            assert row.status == "accept" or row.reason, (value, row)


def test_no_mutated_body_raises(maker: RowMaker) -> None:
    fuzz(maker, 500, 1)


@pytest.mark.slow
def test_no_mutated_body_of_a_hundred_thousand_raises(maker: RowMaker) -> None:
    fuzz(maker, 100_000 // SHARE, 2)
