"""Servers that bill more than was asked for, and servers that put errors into HTTP 200: the account and the caps."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.core.errors import ProviderError
from tests.stages.generate.chat_server import ScriptedReply, completion
from tests.stages.generate.conftest import Bench

LONG = 349


def generous(tokens: Callable[[int], int], billed: list[int]) -> Callable[[str, int], ScriptedReply]:
    """Answer with more tokens than were asked for, and keep the server's own account."""

    def answer(_text: str, _nth: int) -> ScriptedReply:
        count = tokens(len(billed))
        billed.append(count)
        usd = (10 + 2 * count) / 1e6
        return ScriptedReply(body=json.dumps(completion(tokens=count, cost=usd)).encode(), billed=usd)

    return answer


@pytest.mark.parametrize("cap", [{"completion_tokens": 1200}, {"usd": 0.0024}], ids=str)
@pytest.mark.parametrize("concurrency", [1, 2, 3])
def test_a_server_that_ignores_max_tokens_passes_a_cap_by_no_more_than_was_in_flight(
    bench: Bench, cap: dict[str, Any], concurrency: int, capfd: pytest.CaptureFixture[str]
) -> None:
    billed: list[int] = []
    bench.sampling = {"max_tokens": 30}
    bench.provider = {"concurrency": concurrency}
    bench.dataset_budget = cap
    bench.server.script = generous(lambda _: LONG, billed)
    bench.ask(*map(str, range(40)))
    assert sum(billed) <= cap.get("completion_tokens", 1e9)
    assert bench.server.billed <= cap.get("usd", 1)
    assert len(billed) == 3, "the cap is used, as far as it goes"
    said = capfd.readouterr().err
    assert f"billed {LONG} tokens for a request of at most 30: it does not obey max_tokens" in " ".join(said.split())
    bench.ask(*map(str, range(60)))
    assert len(billed) == 3, "a later run knows it from the ledger"


def test_forty_at_once_overshoot_by_what_was_in_flight_and_no_more(bench: Bench) -> None:
    billed: list[int] = []
    bench.sampling = {"max_tokens": 30}
    bench.provider = {"concurrency": 40}
    bench.dataset_budget = {"completion_tokens": 1200}
    bench.server.script = generous(lambda _: LONG, billed)
    bench.ask(*map(str, range(400)))
    assert len(billed) <= 45, "the workers that had reserved before the first answer came"


def test_an_overshoot_that_grows_is_followed(bench: Bench) -> None:
    billed: list[int] = []
    bench.sampling = {"max_tokens": 30}
    bench.provider = {"concurrency": 1}
    bench.dataset_budget = {"completion_tokens": 1000}
    bench.server.script = generous(lambda nth: 40 + 20 * nth, billed)
    bench.ask(*map(str, range(60)))
    assert 600 < sum(billed) <= 1000 + 20


def body(document: Any) -> ScriptedReply:
    return ScriptedReply(body=json.dumps(document).encode())


def notice(text: str) -> dict[str, Any]:
    return completion(text, tokens=0, prompt_tokens=0, cost=None)


LIMITS = [
    {"error": {"code": "rate_limit_exceeded", "message": "slow down"}},
    {"code": 429, "message": "slow down"},
    {"code": "429", "message": "slow down"},
    {"error": {"code": "1302", "message": "并发数过高"}},
    {"error": "Rate limit exceeded"},
    {"detail": "Too many requests"},
    {"choices": [], "message": "rate limit reached"},
    {"status": "error", "msg": "Too many requests, try again later"},
    {"choices": [{"index": 0, "finish_reason": "error", "error": {"code": 429, "message": "limit"}}]},
    notice("Rate limit exceeded. Please try again later."),
    notice("You have sent too many requests, please slow down."),
    notice("当前请求过多，请稍后再试。"),
]


@pytest.mark.parametrize("document", LIMITS, ids=str)
def test_a_rate_limit_inside_a_200_waits_and_books_nothing(bench: Bench, document: dict[str, Any]) -> None:
    bench.server.script = lambda _, nth: body(document) if nth < 3 else body(completion())
    rows = bench.ask("a", "b")
    assert [row["error"] for row in rows] == [None, None]
    assert {attempt["charge_pico"] for attempt in bench.attempts() if attempt["state"] != "answer"} == {0}
    assert bench.summary()["cost_usd"] == pytest.approx(2 * 0.00002)


CREDITS = [
    (200, {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}),
    (200, {"error": {"code": 402, "message": "Insufficient credits"}}),
    (200, {"code": "1113", "message": "您的账户已欠费，请充值"}),
    (200, {"error": "Your credit balance is too low"}),
    (200, notice("Your account is out of credits, please top up.")),
    (429, {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}),
    (429, {"error": {"type": "exceeded_current_quota_error", "message": "please check your plan"}}),
    (429, {"error": {"message": "账户余额不足"}}),
    (403, {"error": {"code": "insufficient_user_quota", "message": "quota"}}),
]


@pytest.mark.parametrize(("status", "document"), CREDITS, ids=str)
def test_missing_credit_stops_the_run_with_the_servers_words(
    bench: Bench, status: int, document: dict[str, Any]
) -> None:
    bench.provider = {"concurrency": 1}
    bench.server.script = lambda *_: ScriptedReply(status, body=json.dumps(document).encode())
    with pytest.raises(ProviderError) as stopped:
        bench.ask("a", "b", "c")
    assert len(bench.server.asked) == 1
    words = json.dumps(document, ensure_ascii=False)
    said = str(stopped.value)
    assert any(word in said for word in ("quota", "redit", "欠费", "余额不足", "plan")), (words, said)
    assert {attempt["charge_pico"] for attempt in bench.attempts()} == {0}


@pytest.mark.parametrize(
    "text", ["Rate limit exceeded means that a server refuses work.", "Too many requests: HTTP status 429.", "Seven."]
)
def test_an_answer_about_rate_limits_is_an_answer(bench: Bench, text: str) -> None:
    bench.server.script = lambda *_: body(completion(text, tokens=9))
    (row,) = bench.ask("a")
    assert row["error"] is None
    assert len(bench.server.asked) == 1


def test_a_429_that_names_a_time_is_a_rate_limit_whatever_its_words(bench: Bench) -> None:
    """Google's says `You exceeded your current quota` for the requests of a minute."""
    limited = ScriptedReply(429, {"Retry-After": "0"}, b'{"error": {"message": "You exceeded your current quota"}}')
    bench.server.script = lambda _, nth: limited if nth < 2 else body(completion())
    (row,) = bench.ask("a")
    assert row["error"] is None
