"""The engine against a server that fails in every way, over real sockets."""

import base64
import dataclasses
import json
import resource
import shutil
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.core.errors import BudgetError, ConfigError, ProviderError
from pipeline.stages.generate.limits.limiter import Limiter
from pipeline.stages.generate.limits.money import PICO
from tests.polling import TIMEOUT_S
from tests.stages.generate.chat_server import ScriptedReply, completion, error, good
from tests.stages.generate.conftest import Bench


def once(failure: ScriptedReply) -> Callable[[str, int], ScriptedReply]:
    """Fail the first time that a prompt is asked, then answer."""
    return lambda _, nth: failure if nth == 0 else good()


GOOD = json.dumps(completion()).encode()

TRANSIENT: dict[str, ScriptedReply] = {
    "http 429": error(429),
    "http 503": error(503),
    "http 502": error(502),
    "html 520": ScriptedReply(520, body=b"<html>edge</html>"),
    "error in a 200": ScriptedReply(body=json.dumps({"error": {"code": 502, "message": "x"}}).encode()),
    "error in the choice": ScriptedReply(
        body=json.dumps(
            {**completion(), "choices": [{"finish_reason": "error", "message": {"content": "It is"}}]}
        ).encode()
    ),
    "dropped": ScriptedReply(drop=True),
    "cut short": ScriptedReply(body=GOOD, cut=50),
    "white space only": ScriptedReply(body=b"   \n  "),
    "not JSON": ScriptedReply(body=b'{"choices": ['),
    "no choices": ScriptedReply(body=json.dumps({**completion(), "choices": []}).encode()),
    "in-flight budget": error(402, limit_source="openrouter_in_flight_budget", headers={"Retry-After": "0"}),
}


@pytest.mark.parametrize("name", TRANSIENT)
def test_what_passes_is_asked_again(bench: Bench, name: str) -> None:
    bench.server.script = once(TRANSIENT[name])
    (row,) = bench.ask("a")
    assert row["error"] is None
    assert row["attempts"] == 2
    assert row["response"] == completion()


@pytest.mark.parametrize("before", [[b" ", b"\n", b" \n"], [b": PROCESSING\n\n", b": PROCESSING\n\n"]])
def test_keep_alive_bytes_before_an_answer_are_not_in_the_row(bench: Bench, before: list[bytes]) -> None:
    bench.server.script = lambda *_: ScriptedReply(body=GOOD, before=before)
    (row,) = bench.ask("a")
    assert row["response"] == completion()
    assert row["attempts"] == 1


def test_keep_alive_bytes_for_ever_end_at_the_total_deadline(bench: Bench) -> None:
    bench.provider = {"timeout": {"read": 30, "total": 2}, "retry": {"repay": 0}}
    bench.server.script = lambda text, _: ScriptedReply(trickle=b" ") if text == "slow" else good()
    slow, quick = bench.ask("slow", "quick")
    assert slow["error"]["kind"] == "deadline"
    assert quick["error"] is None
    assert bench.summary()["uncertain_requests"] == 1


def test_a_silent_server_ends_at_the_read_timeout(bench: Bench) -> None:
    bench.provider = {"timeout": {"read": 1, "total": 120}, "retry": {"repay": 0}}
    bench.server.script = lambda *_: good(delay=120)
    assert bench.ask("a")[0]["error"]["kind"] == "read_timeout"


def test_a_server_that_is_not_there_costs_nothing(bench: Bench) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        bench.provider = {
            "kind": "openai",
            "base_url": f"http://127.0.0.1:{free.getsockname()[1]}/v1",
            "max_price": {"prompt": 1, "completion": 1},
        }
        (row,) = bench.ask("a")
    assert row["error"]["kind"] == "connect"
    assert row["attempts"] == 5
    assert bench.summary()["uncertain_usd"] == 0


def test_a_lost_answer_stays_booked_with_the_most_that_it_can_have_cost(bench: Bench) -> None:
    bench.server.script = lambda *_: ScriptedReply(drop=True, billed=0.0001)
    (row,) = bench.ask("a")
    assert row["error"]["kind"] == "disconnected"
    assert len(bench.server.asked) == 2  # repay: 1
    assert bench.summary()["uncertain_usd"] >= bench.server.billed
    assert [attempt["state"] for attempt in bench.attempts()] == ["uncertain", "uncertain"]


def test_a_partial_answer_is_counted_with_its_cost_and_kept(bench: Bench) -> None:
    torn = {
        **completion(),
        "choices": [
            {"finish_reason": "error", "error": {"message": "ended early"}, "message": {"content": "It is 7 deg"}}
        ],
    }
    bench.server.script = lambda *_: ScriptedReply(body=json.dumps(torn).encode(), billed=0.00002)
    (row,) = bench.ask("a")
    assert row["error"]["kind"] == "provider_error"
    assert "partial text" in row["error"]["message"]
    assert row["response"] == torn
    assert row["cost_usd"] == pytest.approx(bench.server.billed)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (error(400, "too long"), "http_400"),
        (error(413), "http_413"),
        (error(402, reason="weight_exceeds_budget"), "weight_exceeds_budget"),
    ],
)
def test_a_refusal_of_one_row_leaves_the_others_alone(bench: Bench, failure: ScriptedReply, kind: str) -> None:
    bench.server.script = lambda text, _: failure if text == "bad" else good()
    rows = bench.ask("x", "bad", "y")
    assert [row["error"] and row["error"]["kind"] for row in rows] == [None, kind, None]
    assert bench.server.asked.count("bad") == 1


@pytest.mark.parametrize("failure", [error(401, "no such key"), error(404, "no endpoints"), error(403, "forbidden")])
def test_a_refusal_of_everything_stops_the_run_with_the_servers_words(bench: Bench, failure: ScriptedReply) -> None:
    bench.provider = {"concurrency": 1}
    bench.server.script = lambda text, _: good() if text == "first" else failure
    with pytest.raises(ProviderError, match=str(json.loads(failure.body)["error"]["message"])):
        bench.ask("first", "b", "c", "d")
    assert bench.server.asked == ["first", "b"]
    assert bench.rows()[0]["error"] is None


def test_no_credit_stops_the_run_as_a_budget_does(bench: Bench) -> None:
    bench.server.script = lambda *_: error(402, "Insufficient credits")
    bench.provider = {"concurrency": 1}
    with pytest.raises(BudgetError, match="Insufficient credits"):
        bench.ask("a", "b")
    assert len(bench.server.asked) == 1


def test_when_every_row_is_refused_the_run_stops_early(bench: Bench) -> None:
    bench.server.script = lambda *_: error(400, "bad sampling")
    with pytest.raises(ProviderError, match=r"the first 25 prompts all failed.*bad sampling"):
        bench.ask(*map(str, range(200)))
    assert len(bench.server.asked) < 40


def test_a_dead_server_opens_the_breaker_instead_of_burning_every_prompt(bench: Bench) -> None:
    bench.provider = {
        "concurrency": 8,
        "retry": {"breaker": 8, "base": 0.05, "max_wait": 0.2, "patience": 1, "attempts": 50},
    }
    bench.server.script = lambda *_: error(503)
    with pytest.raises(ProviderError, match="no answer for 1 s"):
        bench.ask(*map(str, range(100)))
    assert len(bench.server.asked) < 60


@pytest.mark.slow
def test_a_server_that_recovers_is_used_again_in_full(bench: Bench) -> None:
    bench.provider = {"concurrency": 8, "retry": {"breaker": 8, "attempts": 4}}
    bench.server.script = lambda *_: error(503) if len(bench.server.asked) < 40 else good(delay=0.01)
    rows = bench.ask(*map(str, range(100)))
    assert all(row["error"] is None for row in rows)


def test_retry_after_holds_for_all_and_nobody_comes_early(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(limiter: Limiter, seconds: float) -> None:
        waits.append(seconds)
        await whole(limiter, seconds)

    whole = Limiter.sleep
    monkeypatch.setattr(Limiter, "sleep", sleep)
    bench.provider = {"concurrency": 30}
    bench.server.script = lambda _, nth: error(429, headers={"Retry-After": "1"}) if nth == 0 else good()
    rows = bench.ask(*map(str, range(30)))
    assert all(row["error"] is None for row in rows)
    refused, repeated = bench.server.times[:30], bench.server.times[30:]
    assert min(repeated) - min(refused) >= 1
    asked_to_wait = [seconds for seconds in waits if seconds >= 1]
    assert max(asked_to_wait) - min(asked_to_wait) > 0.05


def test_too_much_in_flight_lowers_the_concurrency(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes 8 requests at a time, and answers none of them before the client sends no more than that.

    `test_limiter` shows in virtual time how few requests are refused meanwhile.
    """
    lowered, overloaded = threading.Event(), Limiter.overloaded

    def observed(limiter: Limiter) -> None:
        overloaded(limiter)
        if limiter.limit <= 8:
            lowered.set()

    def script(_text: str, _nth: int) -> ScriptedReply:
        if bench.server.in_flight > 8:
            return error(402, limit_source="openrouter_in_flight_budget", headers={"Retry-After": "0"})
        return dataclasses.replace(good(), hold=lowered)

    monkeypatch.setattr(Limiter, "overloaded", observed)
    bench.provider = {"concurrency": 32, "retry": {"patience": TIMEOUT_S}}
    bench.server.script = script
    rows = bench.ask(*map(str, range(200)))
    assert lowered.is_set()
    assert all(row["error"] is None for row in rows)


def test_the_last_prompt_waits_in_plain_sight_and_its_patience_says_for_what(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.stages.generate.output.progress._LINE_EVERY", 0.1)
    bench.provider = {"retry": {"patience": 2.4}}
    bench.server.script = lambda text, _: (
        error(429, "slow down", headers={"Retry-After": "60"}) if text == "b" else good()
    )
    waits = "1 wait to be asked again, the last for HTTP 429: slow down"
    with pytest.raises(
        ProviderError, match=rf"no answer for 2\.4 s \(provider\.retry\.patience\); {waits}; all answers so far"
    ):
        bench.ask("a", "b")
    assert f"in flight | {waits}" in capfd.readouterr().err


SURROGATE = GOOD.replace(b"Seven.", rb"Smile \ud83d and go.")


@pytest.mark.parametrize("raw", [SURROGATE, GOOD.replace(b"Seven.", b"\xff\xfe")])
def test_text_that_is_no_unicode_is_kept_byte_for_byte_and_harms_no_other_row(bench: Bench, raw: bytes) -> None:
    bench.server.script = lambda text, _: ScriptedReply(body=raw) if text == "odd" else good()
    rows = bench.ask("a", "odd", "b")
    assert [row["error"] and row["error"]["kind"] for row in rows] == [None, "text_not_utf8", None]
    assert rows[1]["response"] is None
    assert base64.b64decode(rows[1]["response_base64"]) == raw
    assert rows[1]["attempts"] == 1
    assert bench.run() == rows
    shutil.rmtree(bench.folder / "store")
    assert bench.run() == rows
    assert bench.server.asked.count("odd") == 1  # paid for once, however often the stage runs


def test_the_bodys_own_text_is_kept_number_forms_spaces_escapes_and_repeated_keys(bench: Bench) -> None:
    odd = GOOD.replace(b'"id": "gen-1"', b'"id" :  "gen-1", "x": 10.0, "x": 1e1, "y": "a\\/b \\u00e9"')
    bench.server.script = lambda *_: ScriptedReply(body=odd)
    bench.ask("a")
    assert odd in (bench.build / "responses.jsonl").read_bytes()


def test_line_breaks_and_control_characters_keep_one_line_a_row(bench: Bench) -> None:
    text = "\ufeffA\u0000B\u2028C\u0085D\u000bE"
    pretty = json.dumps(completion(text), indent=2, ensure_ascii=False).encode()
    bench.server.script = lambda *_: ScriptedReply(body=pretty)
    rows = bench.ask("a", "b")
    assert len(rows) == 2
    assert rows[0]["response"]["choices"][0]["message"]["content"] == text


POLICY: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"provider": "Beta"}, "provider_not_allowed"),
    ({"model": "m-0127"}, "model_revision_differs"),
    ({"provider": None}, "provider_unknown"),
]


@pytest.mark.parametrize(("changes", "why"), POLICY)
def test_an_answer_from_outside_the_policy_is_kept_and_flagged(
    bench: Bench, changes: dict[str, Any], why: str | None
) -> None:
    bench.server.script = lambda *_: good(**changes)
    (row,) = bench.ask("a")
    assert row["response"] is not None
    assert (row["policy"] or "").split(":")[0] == (why or "")
    assert bench.summary()["outside_policy"] == (why is not None)


def test_a_dated_model_name_is_inside_once_the_config_names_it_without_asking_again(bench: Bench) -> None:
    bench.server.script = lambda *_: good(model="m-0127")
    assert bench.ask("a")[0]["policy"] is not None
    bench.provider = {"answers_as": ["m-0127"]}
    assert bench.run()[0]["policy"] is None
    assert len(bench.server.asked) == 1


def test_the_request_says_everything_that_decides_the_answer(bench: Bench) -> None:
    bench.provider = {"deny": ["Beta"], "evidence": {"logprobs": True}}
    bench.sampling = {"temperature": 0.7, "extra": {"top_k": 40}}
    bench.ask("a")
    (sent,) = bench.server.bodies
    assert sent["provider"] == {
        "only": ["alpha"],
        "ignore": ["Beta"],
        "allow_fallbacks": True,
        "require_parameters": False,
        "data_collection": "deny",
        "quantizations": ["int4", "int8", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32", "unknown"],
        "max_price": {"prompt": 1.0, "completion": 2.0},
    }
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"], sent["seed"], sent["top_k"], sent["stream"]) == (
        0.7,
        1.0,
        100,
        0,
        40,
        False,
    )
    assert sent["plugins"] == [{"id": "context-compression", "enabled": False}]
    assert bench.server.headers[0]["x-openrouter-metadata"] == "enabled"


def test_without_an_endpoint_list_the_configured_prices_bound_the_cost(bench: Bench) -> None:
    bench.server.lists_endpoints = False
    with pytest.raises(ProviderError, match=r"set provider\.max_price"):
        bench.ask("a")
    bench.provider = {"max_price": {"prompt": 1, "completion": 2}, "allow": ["Alpha"]}
    assert bench.ask("a")[0]["error"] is None
    assert bench.server.bodies[0]["provider"]["only"] == ["Alpha"]
    assert bench.attempts()[0]["charge_pico"] == 0.00002 * PICO


def test_a_shell_that_allows_too_few_files_is_told_what_to_set(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    bench.provider = {"concurrency": 4000}
    with pytest.raises(
        ConfigError, match=r"needs 4128 open files, and this shell allows 4096: run `ulimit -n 4128` first"
    ):
        bench.ask("a")
