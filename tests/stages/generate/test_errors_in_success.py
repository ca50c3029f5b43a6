"""Errors of real servers in every wrapping: rate limit, missing credit, refusal, broken; and answers that look so."""

import json
from typing import Any

import pytest

from pipeline.core.http import Reply
from pipeline.stages.generate.limits.money import Price
from pipeline.stages.generate.provider.classify import Outcome, Verdict, judge
from tests.stages.generate.chat_server import ScriptedReply, completion
from tests.stages.generate.conftest import Bench

Fields = dict[str, Any]
PRICE = Price(1000, 2000)


def judged(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Outcome:
    raw = document if isinstance(document, bytes) else json.dumps(document, ensure_ascii=False).encode()
    return judge(Reply(status, raw, headers or {}), price=PRICE, errors="unknown", now=1.8e9)


def says(text: Any, usage: Fields | None) -> Fields:
    return {**completion(text), "usage": usage, "choices": [{"message": {"content": text}, "finish_reason": "stop"}]}


NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
LIMIT = "Rate limit exceeded. Please try again later."

RATE_LIMITS: dict[str, Any] = {
    "a word": {"error": {"code": "rate_limit_exceeded", "message": "slow down"}},
    "a number": {"error": {"code": 429, "message": "slow down"}},
    "a numeric text": {"error": {"code": "429", "message": "slow down"}},
    "Zhipu": {"error": {"code": "1302", "message": "slow down"}},
    "Zhipu, a number": {"error": {"code": 1305, "message": "slow down"}},
    "a text": {"error": "Rate limit exceeded"},
    "a text beside a code": {"error": "slow down", "code": 429},
    "a text beside a status": {"status": 429, "error": "Too Many", "message": "slow down"},
    "true beside a message": {"error": True, "message": "slow down", "code": "429"},
    "at the top": {"code": 429, "message": "slow down"},
    "at the top, status and msg": {"status": "error", "msg": "Too many requests"},
    "message and type": {"message": "slow down", "type": "rate_limited"},
    "Mistral": {"object": "error", "message": "slow down", "type": "rate_limited", "code": "1300"},
    "Anthropic": {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}},
    "Anthropic, overloaded": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    "Moonshot": {"error": {"type": "engine_overloaded_error", "message": "slow down"}},
    "Google": [{"error": {"code": 429, "message": "You exceeded your current quota", "status": "RESOURCE_EXHAUSTED"}}],
    "MiniMax": {"base_resp": {"status_code": 1002, "status_msg": "slow down"}},
    "LiteLLM": {"error": {"message": "slow down", "type": "throttling_error", "code": "429"}},
    "Together": {"error": {"message": "You have been rate limited. Upgrade to a paid plan.", "type": "credit_limit"}},
    "detail": {"detail": "Too many requests"},
    "nested detail": {"detail": {"error": {"code": "rate_limit_exceeded", "message": "slow down"}}},
    "errors": {"success": False, "errors": [{"code": 10000, "message": "rate limited: too many requests"}]},
    "Apigee": {"fault": {"faultstring": "Rate limit quota violation"}},
    "a choice": {"choices": [{"finish_reason": "error", "error": {"code": 429, "message": "slow down"}}]},
    "a choice, a text": {"choices": [{"finish_reason": "error", "error": "Rate limit reached", "message": None}]},
    "beside empty choices": {"choices": [], "usage": NOTHING, "message": "rate limit reached"},
    "beside a choice": {"choices": [{"message": {"content": ""}}], "error": {"code": 429, "message": "slow down"}},
    "counted prompt": {"error": {"code": 429, "message": "slow down"}, "usage": {"prompt_tokens": 9}},
    "a notice": says(LIMIT, NOTHING),
    "a notice, the prompt counted": says(LIMIT, {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}),
    "a notice, only a total": says(LIMIT, {"total_tokens": 0}),
    "a notice in parts": says([{"type": "text", "text": LIMIT}], NOTHING),
    "a notice in Chinese": says("服务繁忙，请稍后再试", NOTHING),
    "a notice of a daily limit": says("Daily limit reached.", NOTHING),
    "plain text": b"Too Many Requests",
    "a page": b"<html><style>p{}</style><h1>429 Too Many Requests</h1></html>",
}


@pytest.mark.parametrize("document", RATE_LIMITS.values(), ids=RATE_LIMITS)
def test_a_rate_limit_waits_and_is_free(document: Any) -> None:
    outcome = judged(document)
    assert (outcome.verdict, outcome.crowded, outcome.cost_pico) == (Verdict.RETRY, True, 0)
    words = ("slow down", "rate limit", "too many", "overloaded", "quota", "limit", "繁忙")
    assert any(word in outcome.message.lower() for word in words)


CREDIT: dict[str, Any] = {
    "OpenAI": {"error": {"code": "insufficient_quota", "message": "credit words"}},
    "OpenAI, a type": {"error": {"type": "insufficient_quota", "code": None, "message": "credit words"}},
    "OpenAI, prepaid": {"error": {"type": "billing", "code": "credit_balance_exhausted", "message": "credit words"}},
    "OpenAI, project": {"error": {"code": "project_spend_limit_exceeded", "message": "credit words"}},
    "OpenAI, hard limit": {"error": {"code": "billing_hard_limit_reached", "message": "credit words"}},
    "OpenRouter": {"error": {"code": 402, "message": "Insufficient credits"}},
    "Anthropic": {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access"}},
    "DeepSeek": {
        "error": {"message": "Insufficient Balance", "type": "unknown_error", "code": "invalid_request_error"}
    },
    "Zhipu": {"error": {"code": "1113", "message": "credit words"}},
    "Zhipu, words": {"error": {"message": "余额不足或无可用资源包,请充值。"}},
    "Moonshot": {"error": {"type": "exceeded_current_quota_error", "message": "credit words"}},
    "Together": {"error": {"message": "Credit limit exceeded. Please add credit words", "type": "credit_limit"}},
    "xAI": {"code": "Some resource has been exhausted", "error": "Your team has used all available credits"},
    "LiteLLM": {
        "error": {"message": "Budget has been exceeded! credit words", "type": "budget_exceeded", "code": "400"}
    },
    "LiteLLM, by words": {"error": {"message": "ExceededBudget: credit words", "type": "auth_error", "code": 400}},
    "One API": {"error": {"code": "insufficient_user_quota", "type": "v_api_error", "message": "credit words"}},
    "MiniMax": {"base_resp": {"status_code": 1008, "status_msg": "credit words"}},
    "Google": {
        "error": {"code": 402, "message": "Your prepayment credits are depleted", "status": "RESOURCE_EXHAUSTED"}
    },
    "wrapped": {"error": {"message": 'Error from provider(zai): {"error":{"message":"Insufficient balance"}}'}},
    "a list": [{"error": {"message": "Insufficient balance"}}],
}


def test_a_notice_of_missing_credit_stops() -> None:
    outcome = judged(says("You are out of credits.", NOTHING))
    assert (outcome.verdict, outcome.kind, outcome.cost_pico) == (Verdict.STOP, "no_credit", 0)
    assert "You are out of credits." in outcome.message


@pytest.mark.parametrize("status", [200, 400, 403, 429])
@pytest.mark.parametrize("document", CREDIT.values(), ids=CREDIT)
def test_missing_credit_stops_whatever_the_status(document: Any, status: int) -> None:
    outcome = judged(document, status)
    assert (outcome.verdict, outcome.kind, outcome.cost_pico) == (Verdict.STOP, "no_credit", 0)
    assert any(word in outcome.message.lower() for word in ("credit", "balance", "余额不足"))


def test_a_time_to_wait_makes_words_a_rate_limit_but_not_a_code() -> None:
    wait = {"retry-after": "5"}
    assert judged({"error": {"message": "You exceeded your current quota"}}, 429, wait).crowded
    assert judged({"error": {"code": "insufficient_quota", "message": "x"}}, 429, wait).verdict is Verdict.STOP


REFUSALS: dict[str, tuple[Fields, Verdict]] = {
    "content": ({"error": {"code": "content_filter", "message": "no"}}, Verdict.FAIL),
    "content, Zhipu": ({"error": {"code": "1301", "message": "no"}}, Verdict.FAIL),
    "too long": ({"error": {"code": "context_length_exceeded", "message": "no"}}, Verdict.FAIL),
    "bad request, vLLM": ({"object": "error", "type": "BadRequestError", "code": 400, "message": "no"}, Verdict.FAIL),
    "bad request, SGLang": ({"object": "error", "type": "BadRequest", "message": "no", "code": None}, Verdict.FAIL),
    "key": ({"error": {"code": "invalid_api_key", "message": "no"}}, Verdict.STOP),
    "key, Zhipu": ({"error": {"code": "1002", "message": "no"}}, Verdict.STOP),
    "key, Anthropic": ({"error": {"type": "authentication_error", "message": "no"}}, Verdict.STOP),
    "model": ({"error": {"code": "model_not_found", "message": "no"}}, Verdict.STOP),
}


@pytest.mark.parametrize(("document", "verdict"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_free_and_ends_one_prompt_or_the_run(document: Fields, verdict: Verdict) -> None:
    outcome = judged(document)
    assert (outcome.verdict, outcome.cost_pico) == (verdict, 0)
    assert outcome.message.endswith(": no")


BROKEN: dict[str, Any] = {
    "OpenAI": {"error": {"type": "server_error", "message": "The server had an error. Please try again later."}},
    "a text": {"error": "boom"},
    "a gateway": {"error": {"code": 502, "message": "Provider returned error"}},
    "unknown code": {"error": {"code": "x17", "message": "boom"}},
    "no words known": {"result": "结果不可用"},
    "cut JSON about limits": b'{"choices": [{"message": {"content": "A rate limit is',
}


@pytest.mark.parametrize("document", BROKEN.values(), ids=BROKEN)
def test_a_broken_request_may_be_billed_and_keeps_the_servers_words(document: Any) -> None:
    outcome = judged(document)
    assert (outcome.verdict, outcome.crowded, outcome.cost_pico) == (Verdict.RETRY, False, None)
    assert any(
        word in outcome.message for word in ("try again", "boom", "returned error", "结果不可用", "rate limit is")
    )


@pytest.mark.parametrize(
    "document",
    [
        completion("Rate limit exceeded. Please try again later.", tokens=9),
        completion("Your account has an insufficient balance.", tokens=9),
        completion("HTTP 429 means Too Many Requests.", tokens=7, prompt_tokens=0),
        completion("Seven.", tokens=0, prompt_tokens=0),
        {**completion("Rate limit exceeded."), "usage": None},
        {**completion("Seven."), "error": {"message": "", "type": "", "param": "", "code": None}},
        {**completion("Seven."), "error": None, "code": 200, "message": "success"},
        completion("A rate limit keeps a server from too many requests. " * 20, tokens=0, prompt_tokens=0),
    ],
    ids=["a limit", "a balance", "no prompt tokens", "zero tokens", "no usage", "empty error", "success", "long"],
)
def test_a_real_answer_stays_an_answer(document: Fields) -> None:
    assert judged(document).verdict is Verdict.ANSWER


def test_an_error_beside_a_text_is_asked_again_and_booked() -> None:
    outcome = judged({**completion("It is", cost=0.5), "error": {"code": 429, "message": "cut"}})
    assert (outcome.verdict, outcome.kind, outcome.cost_pico) == (Verdict.RETRY, "provider_error", 5 * 10**11)
    assert outcome.message == "cut; partial text came"


def test_a_rate_limit_with_a_stated_cost_is_booked() -> None:
    assert judged({"error": {"code": 429, "message": "x"}, "usage": {"cost": 0.25}}).cost_pico == 25 * 10**10


def test_the_quota_of_a_server_behind_a_router_is_a_rate_limit_of_that_provider() -> None:
    raw = '{"error":{"message":"You exceeded your current quota"}}'
    metadata = {"provider_name": "Beta", "raw": raw}
    outcome = judged({"error": {"code": 429, "message": "Provider returned error", "metadata": metadata}}, 429)
    assert (outcome.verdict, outcome.crowded, outcome.provider) == (Verdict.RETRY, True, "Beta")


def test_a_validation_error_that_quotes_a_prompt_about_money_ends_one_prompt() -> None:
    message = f"1 validation error for messages.0.content: input is too long for this model{' ' * 5}{'x' * 200}: my "
    outcome = judged({"error": {"message": f"{message} account has an insufficient balance", "code": 400}}, 400)
    assert outcome.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "document", [RATE_LIMITS["a text beside a code"], RATE_LIMITS["a notice"], RATE_LIMITS["plain text"]], ids=str
)
def test_a_rate_limit_is_asked_again_until_the_answer_comes(bench: Bench, document: Any) -> None:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    good = ScriptedReply(body=json.dumps(completion()).encode(), billed=0.00002)
    bench.server.script = lambda _, nth: ScriptedReply(body=raw) if nth < 7 else good
    rows = bench.ask("a", "b")
    assert [(row["error"], row["attempts"]) for row in rows] == [(None, 8), (None, 8)]
    assert bench.summary()["cost_usd"] == pytest.approx(bench.server.billed)
    assert bench.summary()["uncertain_usd"] == 0


def test_refused_content_ends_one_prompt_and_the_others_are_asked(bench: Bench) -> None:
    refusal = json.dumps({"error": {"code": "1301", "message": "unsafe"}}).encode()
    good = ScriptedReply(body=json.dumps(completion()).encode())
    bench.server.script = lambda text, _: ScriptedReply(body=refusal) if text == "bad" else good
    rows = bench.ask("x", "bad", "y")
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert "unsafe" in rows[1]["error"]["message"]
    assert bench.server.asked.count("bad") == 1


BYOK = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
PRICED = (10 * 1 + 5 * 2) / 1e6


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "usage",
    [
        {"cost": "0"},
        {"cost": "0.0000001"},
        {"cost": None, "is_byok": True},
        {"cost": 0, "is_byok": "True", "cost_details": {"upstream_inference_cost": None}},
        {"cost": 0, "is_byok": 1, "cost_details": None},
        {"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": "unknown"}},
        {"cost": "0", "is_byok": True, "cost_details": {"upstream_inference_cost": "0"}},
    ],
    ids=str,
)
def test_a_cost_that_is_not_known_is_price_times_tokens(bench: Bench, usage: Fields, traced: bool) -> None:
    headers = {"X-Generation-Id": "gen-7"} if traced else {}
    body = json.dumps({**completion(), "usage": {**BYOK, **usage}}).encode()
    bench.server.script = lambda *_: ScriptedReply(headers=headers, body=body)
    bench.ask("a")
    assert bench.summary()["cost_usd"] == pytest.approx(PRICED)
