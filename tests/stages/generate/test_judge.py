"""Every way in which a request can end, as a table: what follows for the row, and what may have been billed."""

import json
from typing import Any, NamedTuple

import pytest

from pipeline.core.http import Lost, Reply
from pipeline.stages.generate.limits.money import PICO, Price
from pipeline.stages.generate.provider.classify import Outcome, Verdict, judge, judge_lost, payload
from tests.stages.generate.chat_server import completion

NOW = 1_800_000_000.0


def body(document: Any) -> bytes:
    return json.dumps(document).encode()


def fault(code: int | str, message: str = "no", **metadata: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "metadata": metadata}}


def choice(**changes: Any) -> dict[str, Any]:
    document = completion()
    document["choices"][0].update(changes)
    return document


def usage(**changes: Any) -> dict[str, Any]:
    document = completion(text="")
    document["choices"][0]["message"]["reasoning"] = None
    document["usage"].update(changes)
    return document


class Case(NamedTuple):
    label: str
    status: int
    document: Any
    verdict: Verdict
    kind: str
    billed: str  # free, known, unknown
    crowded: bool = False


CASES = [
    Case("an answer", 200, completion(), Verdict.ANSWER, "ok", "known"),
    Case(
        "an answer without usage",
        200,
        {k: v for k, v in completion().items() if k != "usage"},
        Verdict.ANSWER,
        "ok",
        "unknown",
    ),
    Case(
        "two choices, one usage",
        200,
        {**completion(), "choices": [completion()["choices"][0], completion("Other.")["choices"][0]]},
        Verdict.ANSWER,
        "ok",
        "known",
    ),
    Case(
        "an error object in a 200",
        200,
        fault(502, "Provider returned error"),
        Verdict.RETRY,
        "provider_error",
        "unknown",
    ),
    Case("a rate limit in a 200", 200, fault(429), Verdict.RETRY, "provider_error", "free", crowded=True),
    Case("no credit in a 200", 200, fault(402, "Insufficient credits"), Verdict.STOP, "no_credit", "free"),
    Case("an error code that is a word", 200, fault("server_error"), Verdict.RETRY, "provider_error", "unknown"),
    Case("an error that is a text", 200, {"error": "boom"}, Verdict.RETRY, "provider_error", "unknown"),
    Case(
        "an error in the choice",
        200,
        choice(finish_reason="error", error={"code": 502, "message": "Stream ended early"}),
        Verdict.RETRY,
        "provider_error",
        "known",
    ),
    Case("finish error alone", 200, choice(finish_reason="error"), Verdict.RETRY, "provider_error", "known"),
    Case("no choices", 200, {**completion(), "choices": []}, Verdict.RETRY, "no_choices", "known"),
    Case("choices of another type", 200, {**completion(), "choices": "x"}, Verdict.RETRY, "no_choices", "known"),
    Case(
        "zero tokens, paid",
        200,
        usage(completion_tokens=0, total_tokens=10, cost=0.0067),
        Verdict.RETRY,
        "empty_zero_tokens",
        "known",
    ),
    Case("empty but counted", 200, usage(completion_tokens=2), Verdict.ANSWER, "ok", "known"),
    Case("JSON of another shape", 200, [1], Verdict.RETRY, "not_json", "unknown"),
    Case("bad request", 400, fault(400, "context length"), Verdict.FAIL, "http_400", "free"),
    Case("no such model", 400, fault(400, error_type="model_not_found"), Verdict.STOP, "http_400", "free"),
    Case("wrong key", 401, fault(401), Verdict.STOP, "http_401", "free"),
    Case(
        "too much in flight",
        402,
        fault(402, limit_source="openrouter_in_flight_budget"),
        Verdict.RETRY,
        "in_flight_budget",
        "free",
        crowded=True,
    ),
    Case(
        "too much in flight, by reason",
        402,
        fault(402, reason="in_flight_budget_exhausted"),
        Verdict.RETRY,
        "in_flight_budget",
        "free",
        crowded=True,
    ),
    Case(
        "one request too large",
        402,
        fault(402, reason="weight_exceeds_budget"),
        Verdict.FAIL,
        "weight_exceeds_budget",
        "free",
    ),
    Case("no credit", 402, fault(402, "Insufficient credits"), Verdict.STOP, "no_credit", "free"),
    Case("moderation", 403, fault(403, reasons=["x"], flagged_input="y"), Verdict.FAIL, "http_403", "free"),
    Case("forbidden", 403, fault(403), Verdict.STOP, "http_403", "free"),
    Case("no endpoints", 404, fault(404), Verdict.STOP, "http_404", "free"),
    Case("edge timeout", 408, fault(408), Verdict.RETRY, "http_408", "unknown"),
    Case("conflict", 409, fault(409), Verdict.RETRY, "http_409", "free"),
    Case("too large", 413, fault(413), Verdict.FAIL, "http_413", "free"),
    Case("unprocessable", 422, fault(422), Verdict.FAIL, "http_422", "free"),
    Case("too early", 425, fault(425), Verdict.RETRY, "http_425", "free"),
    Case("rate limit", 429, fault(429), Verdict.RETRY, "http_429", "free", crowded=True),
    Case("server error", 500, fault(500), Verdict.RETRY, "http_500", "unknown"),
    Case("not implemented", 501, fault(501), Verdict.FAIL, "http_501", "free"),
    Case("bad gateway", 502, fault(502), Verdict.RETRY, "http_502", "unknown"),
    Case("overloaded", 503, fault(503), Verdict.RETRY, "http_503", "free"),
    Case("gateway timeout", 504, fault(504), Verdict.RETRY, "http_504", "unknown"),
    Case("edge: unknown", 520, None, Verdict.RETRY, "http_520", "unknown"),
    Case("edge: server down", 521, None, Verdict.RETRY, "http_521", "free"),
    Case("edge: timed out while answering", 524, fault(524), Verdict.RETRY, "http_524", "unknown"),
    Case("provider overloaded", 529, fault(529), Verdict.RETRY, "http_529", "free", crowded=True),
    Case("redirect", 301, None, Verdict.STOP, "http_301", "free"),
    Case("an answer with another success", 201, completion(), Verdict.ANSWER, "ok", "known"),
    Case("a success that says nothing", 202, None, Verdict.RETRY, "not_json", "unknown"),
    Case("another protocol", 101, None, Verdict.RETRY, "http_101", "unknown"),
    Case(
        "refused, but worth a retry by its own word",
        404,
        {"error": {"http_status": 404, "message": "x", "availability": {"retryable": True}}},
        Verdict.RETRY,
        "http_404",
        "free",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_table(case: Case) -> None:
    found = judge(Reply(case.status, body(case.document)), price=None, errors="unknown", now=NOW)
    billed = "unknown" if found.cost_pico is None else "known" if found.cost_pico else "free"
    assert (found.verdict, found.kind, billed, found.crowded) == (case.verdict, case.kind, case.billed, case.crowded)


@pytest.mark.parametrize("status", [500, 502])
def test_an_orderly_server_error_is_free_where_the_config_says_so(status: int) -> None:
    assert judge(Reply(status, body(fault(status))), price=None, errors="unbilled", now=NOW).cost_pico == 0
    assert judge(Reply(status, b"<html>"), price=None, errors="unbilled", now=NOW).cost_pico is None


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("connect", False),
        ("connect_timeout", False),
        ("deadline", True),
        ("read_timeout", True),
        ("disconnected", True),
        ("cut_short", True),
    ],
)
def test_what_never_left_is_free_and_what_was_sent_may_be_billed(kind: str, sent: bool) -> None:
    found = judge_lost(Lost(kind, "x", sent=sent))
    assert found.verdict is Verdict.RETRY
    assert (found.cost_pico is None) is sent


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1}',
        b'  \n\n {"a":1}\n',
        b': OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n{"a":1}',
        b'\xef\xbb\xbf{"a":1}',
        b' \n: x\r\n \r\n{"a":1} \r\n',
    ],
)
def test_keep_alive_bytes_are_not_part_of_an_answer(raw: bytes) -> None:
    assert payload(raw) == b'{"a":1}'


@pytest.mark.parametrize("raw", [b"", b" \n \n ", b": OPENROUTER PROCESSING\n", b'{"choices": [', b"<html>"])
def test_a_body_without_json_may_have_been_billed_and_is_asked_again(raw: bytes) -> None:
    found = judge(Reply(200, raw), price=None, errors="unknown", now=NOW)
    assert (found.verdict, found.kind, found.cost_pico) == (Verdict.RETRY, "not_json", None)


@pytest.mark.parametrize(("raw", "kind"), [(rb"\ud83d", "text_not_utf8"), (b"\xff", "text_not_utf8"), (b"ok", "ok")])
def test_text_that_is_no_unicode_is_paid_and_kept_but_no_answer(raw: bytes, kind: str) -> None:
    found = judge(Reply(200, body(completion("HERE")).replace(b"HERE", raw)), price=None, errors="unknown", now=NOW)
    assert found.kind == kind
    assert found.verdict is (Verdict.ANSWER if kind == "ok" else Verdict.SPOILT)
    assert found.cost_pico == 20_000_000


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"[NaN]"])
def test_numbers_that_json_has_not_are_paid_once_and_kept(number: bytes) -> None:
    document = {**completion(), "logprobs": "HERE"}
    found = judge(Reply(200, body(document).replace(b'"HERE"', number)), price=None, errors="unknown", now=NOW)
    assert (found.verdict, found.kind, found.cost_pico) == (Verdict.SPOILT, "not_json", 20_000_000)


def test_a_redirect_is_named() -> None:
    found = judge(Reply(308, b"", {"location": "https://elsewhere/v1"}), price=None, errors="unknown", now=NOW)
    assert "redirects to https://elsewhere/v1" in found.message
    assert "provider.base_url" in found.message


def test_a_servers_message_cannot_steer_the_terminal() -> None:
    message = judge(
        Reply(400, body(fault(400, "a\x1b[31mb\x07\u202ec\nd"))), price=None, errors="unknown", now=NOW
    ).message
    assert message.isprintable()
    assert message.endswith("c d")


@pytest.mark.parametrize(
    ("changes", "pico"),
    [
        ({"cost": 0.5}, PICO // 2),
        ({"cost": None}, 10 * 3 + 5 * 7),
        ({"cost": -1}, 10 * 3 + 5 * 7),
        ({"cost": "0.5"}, 10 * 3 + 5 * 7),
        ({"cost": True}, 10 * 3 + 5 * 7),
        ({"cost": 0.1, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.3}}, 4 * PICO // 10),
        ({"cost": 0.1, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.1}}, PICO // 10),
        ({"cost": None, "completion_tokens": "5"}, 10 * 3 + 5 * 7),
        ({"cost": None, "completion_tokens": "5 tokens", "total_tokens": None}, None),
    ],
)
def test_cost_is_the_servers_word_else_price_times_usage(changes: dict[str, Any], pico: int | None) -> None:
    document = completion()
    document["usage"].update(changes)
    found = judge(Reply(200, body(document)), price=Price(3, 7), errors="unknown", now=NOW)
    assert found.cost_pico == pico


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, 30.0),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT", "date": "Fri, 15 Jan 2027 08:00:20 GMT"}, 10.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000012000"}, 12.0),
        ({"x-ratelimit-remaining": "5", "x-ratelimit-reset": "1800000012000"}, None),
    ],
)
def test_every_form_of_please_wait(headers: dict[str, str], wait: float | None) -> None:
    found = judge(Reply(429, body(fault(429)), headers), price=None, errors="unknown", now=NOW)
    assert found.asked_wait == wait


def test_the_servers_message_reaches_the_user() -> None:
    found: Outcome = judge(
        Reply(400, body(fault(400, "too long", provider_name="Alpha", raw="4097 tokens"))),
        price=None,
        errors="unknown",
        now=NOW,
    )
    assert found.message == "HTTP 400: too long | Alpha | 4097 tokens"
