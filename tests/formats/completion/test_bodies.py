"""Envelopes, errors, choices and ids of bodies from all kinds of servers."""

import json
import random
from typing import Any

import pytest

from pipeline.formats.completion.body import parse_body, provider_of
from pipeline.formats.completion.choices import choice_list
from pipeline.formats.completion.envelope import Enclosed, name_in, open_envelope
from pipeline.formats.completion.error_report import error_of
from pipeline.formats.completion.message_texts import has_text
from pipeline.formats.completion.nesting import DEEPEST
from pipeline.formats.completion.sampled_ids import prompt_ids
from pipeline.formats.completion.token_logprobs import logged_tokens
from tests.answers.test_parse import JUNK, NATIVE, PARTS, RICH, mutated
from tests.conftest import ROOT, SHARE

BODY = {"choices": [{"finish_reason": "stop", "message": {"content": "4"}}]}
BATCH: dict[str, Any] = json.loads((ROOT / "tests/data/cases/batch_form.jsonl").read_text())


@pytest.mark.parametrize(
    ("line", "enclosed"),
    [
        ({"response": BODY}, Enclosed(BODY)),
        ({"response": json.dumps(BODY)}, Enclosed(BODY)),
        ({"response": f"\n {json.dumps(BODY)}"}, Enclosed(BODY)),
        ({"response": "The answer is 4."}, Enclosed("The answer is 4.")),
        ({"response": "{4}"}, Enclosed("{4}")),
        ({"response": '{"\ud800'}, Enclosed('{"\ud800')),
        ({"response": None}, Enclosed()),
        ({}, Enclosed()),
        (BATCH, Enclosed(BATCH["response"]["body"])),
        ({"response": {"status_code": 200, "body": json.dumps(BODY)}}, Enclosed(BODY)),
        ({"response": {"status_code": "200", "body": BODY}}, Enclosed(BODY)),
        ({"response": {"body": BODY}}, Enclosed(BODY)),
        ({"custom_id": "a", "response": BODY}, Enclosed(BODY)),
        ({"response": {"status_code": 429, "body": {"error": {}}}}, Enclosed({"error": {}}, "status_code 429")),
        ({"response": {"status_code": 500, "body": None}}, Enclosed(None, "status_code 500")),
        (
            {"custom_id": "a", "response": None, "error": {"code": "batch_expired", "message": "late"}},
            Enclosed(None, "batch_expired: late"),
        ),
        ({"custom_id": "a", "response": {"status_code": 200, "body": BODY}, "error": {}}, Enclosed(BODY)),
    ],
)
def test_the_body_is_found_in_every_envelope(line: dict[str, Any], enclosed: Enclosed) -> None:
    assert open_envelope(line) == enclosed


def test_a_text_that_is_nested_too_deeply_stays_a_text() -> None:
    for depth, kept in ((DEEPEST - 1, False), (DEEPEST + 1, True)):
        text = '{"a":' + "[" * depth + "]" * depth + "}"
        assert isinstance(open_envelope({"response": text}).body, str) is kept


def test_a_batch_line_is_known_by_its_custom_id() -> None:
    assert name_in(BATCH) == "p-7"
    assert name_in({"id": "x", "custom_id": ""}) == name_in({"id": "x", "custom_id": None}) == "x"


@pytest.mark.parametrize(
    ("body", "code", "message", "status"),
    [
        ({"error": {"code": 502, "message": "no"}}, 502, "no", 502),
        ({"error": {"code": "429", "message": "no"}}, "429", "no", 429),
        ({"error": {"code": "server_error", "message": "no"}}, "server_error", "no", None),
        ({"error": {"code": "rate_limit_exceeded", "message": "slow"}}, "rate_limit_exceeded", "slow", 429),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}, None, "slow", 429),
        ({"error": {"http_status": 404, "message": "x"}}, 404, "x", 404),
        ({"error": "boom"}, None, "boom", None),
        ({"error": [{"message": "boom"}]}, None, "boom", None),
        ({"error": True}, None, "", None),
        ({"errors": ["boom"]}, None, "boom", None),
        ({"detail": "Not Found"}, None, "Not Found", None),
        ({"detail": [{"loc": ["body"], "msg": "m", "type": "missing"}]}, None, "m", None),
        ({"object": "error", "message": "too long", "code": 400}, 400, "too long", 400),
        ({"code": 429, "message": "slow"}, 429, "slow", 429),
        (
            {"error": {"code": "1302", "message": "您当前使用该API的并发数过高"}},
            "1302",
            "您当前使用该API的并发数过高",
            429,
        ),
        ({"error": {"code": "1113", "message": "您的账户已欠费"}}, "1113", "您的账户已欠费", 402),
        ({"error": "Rate limit exceeded"}, None, "Rate limit exceeded", 429),
        ({"detail": "Too many requests"}, None, "Too many requests", 429),
        ({"status": 429, "msg": "slow"}, 429, "slow", 429),
        ({"status": "error", "msg": "请求过多，请稍后再试"}, "error", "请求过多，请稍后再试", 429),
        ({"success": False, "message": "out of credits"}, None, "out of credits", 402),
        ({"message": "API rate limit exceeded"}, None, "API rate limit exceeded", 429),
        ({"choices": None, "code": 500, "message": "no"}, 500, "no", 500),
        ({"choices": [], "base_resp": {"status_code": 1002, "status_msg": "slow"}}, 1002, "slow", 429),
        (
            {"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "m"}},
            "insufficient_quota",
            "m",
            402,
        ),
        ({"error": {"type": "exceeded_current_quota_error", "message": "m"}}, None, "m", 402),
        ({"error": {"type": "overloaded_error", "message": "Overloaded"}}, None, "Overloaded", 429),
    ],
)
def test_an_error_is_read_in_every_shape(body: Any, code: Any, message: str, status: int | None) -> None:
    report = error_of(body)
    assert report is not None
    assert (report.code, report.message, report.status) == (code, message, status)


@pytest.mark.parametrize(
    "body",
    [
        BODY,
        {**BODY, "detail": "x"},
        {**BODY, "message": "x", "code": 1},
        {"error": None},
        {"error": {}},
        {"message": "x"},
        {},
        [],
        None,
    ],
)
def test_what_is_not_an_error(body: Any) -> None:
    assert error_of(body) is None


@pytest.mark.parametrize(
    ("choice", "stopped_by"),
    [
        ({"stop_reason": "\n\n"}, "\n\n"),
        ({"stop_reason": 163586}, 163586),
        ({"stop_reason": None}, None),
        ({"matched_stop": 163586}, 163586),
        ({"finish_reason": {"type": "stop", "matched": "END"}}, "END"),
        ({"stop_reason": True}, None),
        ({"stop_reason": ["x"]}, None),
    ],
)
def test_what_stopped_the_answer_is_kept_as_sent(choice: dict[str, Any], stopped_by: Any) -> None:
    (answer,) = parse_body({"choices": [{"finish_reason": "stop", "message": {"content": "x"}, **choice}]}).answers
    assert (answer.stopped_by, answer.finish) == (stopped_by, "stop")


@pytest.mark.parametrize(
    "message",
    [
        {"thinking": "a"},
        {"thinking_blocks": [{"type": "thinking", "thinking": "a", "signature": "s"}]},
        {"reasoning_content": "a", "thinking_blocks": [{"type": "thinking", "thinking": "a"}]},
        {"reasoning_content": "a", "thinking": "a"},
    ],
)
def test_reasoning_under_further_names(message: dict[str, Any]) -> None:
    (answer,) = parse_body({"choices": [{"finish_reason": "stop", "message": {"content": "x", **message}}]}).answers
    assert (answer.reasoning, answer.content, answer.other_reasoning, answer.rejects) == ("a", "x", None, ())


def test_the_engines_own_route_is_one_choice() -> None:
    body = {
        "text": "a",
        "output_ids": [5, 7],
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": 7},
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "output_token_logprobs": [[-0.5, 5, None], [-0.1, 7, None], "x", [1]],
        },
    }
    reply = parse_body(body)
    (answer,) = reply.answers
    assert (answer.content, answer.finish_reason, answer.stopped_by) == ("a", "stop", 7)
    assert answer.given == (("output_ids", [5, 7]),)
    assert logged_tokens(answer.logprobs)[0].ids == [5, 7]
    assert reply.usage[:2] == (3, 2)


def test_prompt_ids_are_found_wherever_engines_put_them() -> None:
    assert list(prompt_ids({"prompt_token_ids": [1]})) == [[1]]
    assert list(prompt_ids({"choices": [{"prompt_token_ids": [1], "raw_output": {"prompt_token_ids": [2]}}]})) == [
        [1],
        [2],
    ]
    assert list(prompt_ids({"sglext": {"input_ids": [1]}, "choices": [3]})) == [[1]]
    assert list(prompt_ids(None)) == []


def test_logprobs_name_tokens_by_id_or_by_bytes() -> None:
    assert logged_tokens({"content": [{"token": "token_id:5"}, {"token_id": 7}]})[0].ids == [5, 7]
    entries = [{"token": "a"}, {"token": "?", "bytes": [195]}, {"bytes": [999]}, {"token": "\ud800"}]
    assert logged_tokens({"content": entries, "reasoning": [{"token": "b"}]}) == [
        (None, [b"b"]),
        (None, [b"a", b"\xc3", b"", b""]),
    ]
    unusable: tuple[Any, ...] = (
        None,
        [],
        {"content": []},
        {"content": [3]},
        {"token_ids": []},
        {"tokens": [1]},
        {"token_ids": [1.0]},
    )
    for value in unusable:
        assert logged_tokens(value) == []


def test_the_provider_is_the_bodys_word_or_the_selected_endpoint() -> None:
    assert provider_of({"provider": "P", "openrouter_metadata": 3}) == "P"
    selected = {"endpoints": {"available": [{"provider": "A"}, 3, {"provider": "B", "selected": True}]}}
    assert provider_of({"provider": None, "openrouter_metadata": selected}) == "B"
    assert provider_of({"openrouter_metadata": {"endpoints": {"available": 3}}}) is None


def look_at(value: Any) -> None:
    """Call all readers."""
    parse_body(value)
    list(prompt_ids(value))
    error = error_of(value)
    if error is not None:
        _ = (error.code, error.message, error.metadata, error.status, error.line)
    if isinstance(value, dict):
        choices = choice_list(value)
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                has_text(choice)
                logged_tokens(choice.get("logprobs"))
        open_envelope(value)
        open_envelope({"custom_id": 1, "response": {"status_code": value.get("id"), "body": value}, "error": value})


FULL = {
    **RICH,
    "provider": "P",
    "x_groq": {"usage": {"completion_tokens": 5}},
    "openrouter_metadata": {"endpoints": {"available": [{"provider": "B", "selected": True}]}},
}
FULL["usage"] = {
    "prompt_tokens": 1,
    "completion_tokens": 2,
    "cost": 1,
    "is_byok": True,
    "cost_details": {"upstream_inference_cost": 1},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
FAILED = {
    "error": {"code": 502, "message": "x", "metadata": {"raw": "y"}},
    "errors": [{"message": "x"}],
    "detail": [{"msg": "x"}],
}


def fuzz(count: int, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(count):
        look_at(mutated((FULL, PARTS, NATIVE, FAILED, BATCH)[number % 5], rng))


def test_no_json_raises() -> None:
    for value in JUNK:
        look_at(value)
        for key in (*FULL, *FAILED, *NATIVE):
            look_at({key: value})
    fuzz(2000, 3)


@pytest.mark.slow
def test_no_json_of_many_raises() -> None:
    fuzz(400_000 // SHARE, 4)
