"""The ledger's account beside the server's own, for every form in which servers report tokens and cost."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.stages.generate.limits.money import PICO
from tests.stages.generate.chat_server import ScriptedReply, completion
from tests.stages.generate.conftest import Bench

PROMPT, TEXT, REASONING = 14, 8, 341
TOKENS = TEXT + REASONING
USD = (PROMPT * 1 + TOKENS * 2) / 1e6
"""What the server bills: its list of endpoints says $1 and $2 per million tokens."""

Fields = dict[str, Any]


def counts(completion_tokens: Any = TEXT, total: Any = PROMPT + TOKENS, **more: Any) -> Fields:
    details = {"completion_tokens_details": {"reasoning_tokens": REASONING}}
    return {"prompt_tokens": PROMPT, "completion_tokens": completion_tokens, "total_tokens": total, **details, **more}


def as_text(fields: Fields) -> Fields:
    return {key: str(value) if isinstance(value, int) else value for key, value in fields.items()}


def as_float(fields: Fields) -> Fields:
    return {key: float(value) if isinstance(value, int) else value for key, value in fields.items()}


BODIES: dict[str, Fields] = {
    "beside, by the total": {"usage": counts()},
    "beside, without a total": {"usage": counts(total=None)},
    "beside, the total too small": {"usage": counts(total=3)},
    "inside": {"usage": counts(TOKENS)},
    "inside, without a total": {"usage": counts(TOKENS, None)},
    "in the total alone": {"usage": {**counts(), "completion_tokens_details": None}},
    "at the top": {"usage": {**counts(), "completion_tokens_details": None, "reasoning_tokens": REASONING}},
    "floats": {"usage": as_float(counts())},
    "texts": {"usage": as_text(counts())},
    "a fraction beside a good total": {"usage": counts(8.5)},
    "negative beside a good total": {"usage": counts(-8)},
    "huge beside a good total": {"usage": counts(1 << 70)},
    "router's cost": {"usage": counts(cost=USD)},
    "router's cost, none of its own key": {"usage": counts(cost=USD, is_byok=False)},
    "own key, cost null": {"usage": counts(cost=None, is_byok=True)},
    "own key, cost a text": {"usage": counts(cost="0", is_byok=True)},
    "own key, upstream null": {"usage": counts(cost=0, is_byok=True, cost_details={"upstream_inference_cost": None})},
    "own key, upstream named": {"usage": counts(cost=0, is_byok=True, cost_details={"upstream_inference_cost": USD})},
    "own key, no details": {"usage": counts(cost=0, is_byok=True)},
    "cost a word": {"usage": counts(cost="free")},
    "Anthropic's names": {"usage": {"input_tokens": 4, "cache_read_input_tokens": 10, "output_tokens": TOKENS}},
    "nested in x_groq": {"usage": None, "x_groq": {"usage": counts()}},
}


def script(fields: Fields, billed: list[int]) -> Callable[[str, int], ScriptedReply]:
    """ScriptedReply with these fields, and keep the server's own account of tokens."""
    body = json.dumps({**completion(cost=None), **fields}).encode()

    def answer(_text: str, _nth: int) -> ScriptedReply:
        billed.append(TOKENS)
        return ScriptedReply(body=body, billed=USD)

    return answer


def in_the_choice(fields: Fields) -> Fields:
    document = completion(cost=None)
    return {"usage": None, "choices": [{**document["choices"][0], "usage": fields["usage"]}]}


@pytest.mark.parametrize(
    "fields", [*BODIES.values(), in_the_choice(BODIES["beside, by the total"])], ids=[*BODIES, "nested in the choice"]
)
def test_the_ledger_books_what_the_server_bills_and_a_cap_holds(bench: Bench, fields: Fields) -> None:
    billed: list[int] = []
    bench.sampling = {"max_tokens": 400}
    bench.provider = {"concurrency": 2}
    bench.dataset_budget = {"completion_tokens": 1800}
    bench.server.script = script(fields, billed)
    rows = bench.ask(*map(str, range(12)))
    assert len(billed) == 5
    assert [row["error"]["kind"] for row in rows if row["error"]] == ["not_asked"] * 7
    assert sum(billed) <= 1800
    assert bench.summary()["completion_tokens"] == sum(billed)
    assert bench.summary()["cost_usd"] == pytest.approx(bench.server.billed)


def test_forty_answers_with_reasoning_beside_are_booked_in_full(bench: Bench) -> None:
    billed: list[int] = []
    bench.server.script = script(BODIES["beside, by the total"], billed)
    bench.ask(*map(str, range(40)))
    summary = bench.summary()
    assert {attempt["completion_tokens"] for attempt in bench.attempts()} == {349}
    assert summary["completion_tokens"] == sum(billed) == 13_960
    assert summary["cost_usd"] == pytest.approx(0.0285, abs=0.0001)
    assert summary["usd_per_million_tokens"] == pytest.approx(2.04, abs=0.01)


@pytest.mark.parametrize("cap", [{"completion_tokens": 3000}, {"usd": 0.01}])
@pytest.mark.parametrize("routed", [False, True])
def test_a_cap_stops_the_run_by_the_servers_own_account(bench: Bench, cap: Fields, routed: bool) -> None:
    billed: list[int] = []
    bench.provider = {"concurrency": 1}
    bench.sampling = {"max_tokens": 400}
    bench.dataset_budget = cap
    bench.server.script = script({"usage": counts(cost=USD)} if routed else {"usage": counts()}, billed)
    bench.ask(*map(str, range(40)))
    assert len(billed) == (8 if "completion_tokens" in cap else 13)
    assert sum(billed) <= cap.get("completion_tokens", 1 << 30)
    assert bench.server.billed <= cap.get("usd", 1)
    bench.ask(*map(str, range(60)))  # the cap holds for later runs as well
    assert sum(billed) <= cap.get("completion_tokens", 1 << 30)
    assert bench.server.billed <= cap.get("usd", 1)


def test_the_fee_of_a_router_comes_on_top_where_the_upstream_bill_is_missing(bench: Bench) -> None:
    bench.server.script = script({"usage": counts(cost=0.001, is_byok=True)}, [])
    bench.ask("a")
    assert bench.attempts()[0]["charge_pico"] == pytest.approx((0.001 + USD) * PICO)


@pytest.mark.parametrize("usage", [counts(), counts(cost=None), counts(cost="free")])
def test_a_router_that_keeps_the_account_is_asked_later_what_was_not_stated(bench: Bench, usage: Fields) -> None:
    traced = {"X-Generation-Id": "gen-7"}
    bench.sampling = {"max_tokens": 400}
    bench.dataset_budget = {"usd": 0.01}
    bench.provider = {"concurrency": 1}
    bench.server.script = lambda *_: ScriptedReply(
        headers=traced, body=json.dumps({**completion(), "usage": usage}).encode(), billed=USD
    )
    bench.ask(*map(str, range(40)))
    assert bench.server.billed <= 0.01
    assert bench.summary()["uncertain_usd"] >= bench.server.billed
    assert {(one["generation"], one["cost_pico"]) for one in bench.attempts()} == {("gen-7", None)}


def test_an_unknown_cost_is_booked_with_all_the_tokens_that_came_though_fewer_were_asked_for(bench: Bench) -> None:
    body = json.dumps({**completion(), "usage": counts()}).encode()
    bench.server.script = lambda *_: ScriptedReply(headers={"X-Generation-Id": "gen-7"}, body=body)
    bench.ask("a")  # at most 100 tokens asked for, 349 billed
    assert bench.attempts()[0]["charge_pico"] >= USD * PICO - 1


def test_a_key_of_ones_own_is_never_booked_as_free_though_the_router_can_be_asked(bench: Bench) -> None:
    usage = counts(cost=0, is_byok=True, cost_details={"upstream_inference_cost": None})
    bench.server.script = lambda *_: ScriptedReply(
        headers={"X-Generation-Id": "gen-7"}, body=json.dumps({**completion(), "usage": usage}).encode()
    )
    bench.ask("a")
    assert bench.summary()["cost_usd"] == pytest.approx(USD)


@pytest.mark.parametrize(
    "usage", [None, {}, counts(8.5, None), counts("many", None), counts(-1, None), {"cost": None, "is_byok": True}]
)
def test_an_account_that_cannot_be_read_counts_with_the_most_that_it_can_be(bench: Bench, usage: Any) -> None:
    bench.server.script = script({"usage": usage}, [])
    bench.ask("a")
    (attempt,) = bench.attempts()
    assert attempt["charge_tokens"] == 100
    assert attempt["charge_pico"] >= 100 * 2 * PICO / 1e6
    assert attempt["cost_pico"] is None


def test_restored_answers_keep_the_account(bench: Bench) -> None:
    bench.server.script = script(in_the_choice(BODIES["beside, by the total"]), [])
    bench.ask("a")
    for file in (bench.folder / "store").iterdir():
        file.unlink()
    bench.run()
    (attempt,) = bench.attempts()
    assert (attempt["completion_tokens"], attempt["charge_tokens"]) == (TOKENS, TOKENS)
    assert len(bench.server.asked) == 1


@pytest.mark.parametrize(
    "document",
    [
        {"error": {"code": "rate_limit_exceeded", "message": "slow down"}},
        {"error": {"type": "rate_limit_error", "message": "slow down"}},
        {"code": 429, "message": "slow down"},
        {"object": "error", "message": "slow down", "code": "429"},
    ],
)
def test_a_rate_limit_inside_a_success_is_asked_again_and_books_nothing(bench: Bench, document: Fields) -> None:
    refused = ScriptedReply(body=json.dumps(document).encode())
    bench.server.script = lambda _, nth: refused if nth < 2 else ScriptedReply(body=json.dumps(completion()).encode())
    (row,) = bench.ask("a")
    assert (row["error"], row["attempts"]) == (None, 3)
    assert bench.summary()["uncertain_requests"] == 0
    assert bench.summary()["completion_tokens"] == 5


def test_an_error_that_was_billed_all_the_same_is_booked(bench: Bench) -> None:
    document = {"error": {"code": 400, "message": "cut off"}, "usage": counts(cost=USD)}
    bench.server.script = lambda *_: ScriptedReply(body=json.dumps(document).encode(), billed=USD)
    bench.ask("a")
    assert bench.summary()["cost_usd"] == pytest.approx(bench.server.billed)
    assert bench.attempts()[0]["charge_tokens"] == TOKENS


def test_the_words_of_an_error_reach_the_user_whatever_its_shape(bench: Bench) -> None:
    refusal = {"object": "error", "message": "too long for the model", "type": "BadRequestError", "code": 400}
    bench.server.script = lambda text, _: (
        ScriptedReply(400, body=json.dumps(refusal).encode())
        if text == "bad"
        else ScriptedReply(body=json.dumps(completion()).encode())
    )
    rows = bench.ask("x", "bad")
    assert rows[1]["error"]["message"] == "HTTP 400: too long for the model"
