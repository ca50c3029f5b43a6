"""The providers that a request names over time, and the engine that uses them."""

import json
from typing import Any

import pytest

from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.provider.policy import admit, parse_endpoints
from pipeline.stages.generate.provider.rotation import Rotation
from tests.stages.generate.chat_server import ENDPOINT, ScriptedReply, completion, error, good
from tests.stages.generate.conftest import Bench

TWO = [ENDPOINT, {**ENDPOINT, "provider_name": "Beta AI", "tag": "beta/int4"}]
OPENROUTER = ProviderSection(kind="openrouter", model="m")


def rotation(endpoints: list[dict[str, Any]] = TWO) -> Rotation:
    admission = admit(parse_endpoints({"data": {"endpoints": endpoints}}), OPENROUTER, needs=frozenset(), max_tokens=10)
    return Rotation(
        {"model": "m", "provider": {"only": sorted(endpoint.tag for endpoint in admission.admitted), "ignore": []}},
        admission,
    )


def only(found: Rotation, now: float, *avoided: str) -> list[str]:
    block = json.loads(found.tail(avoided, now))["provider"]
    assert block["ignore"] == []
    names: list[str] = block["only"]
    return names


def test_who_asked_to_be_left_alone_is_left_out_for_that_time() -> None:
    found = rotation()
    assert found.cool("Beta AI", 20, now=100) == 0
    assert only(found, 119) == ["alpha"]
    assert only(found, 121) == ["alpha", "beta/int4"]


def test_when_all_cool_down_everybody_waits_for_the_first() -> None:
    found = rotation()
    found.cool("Alpha", 20, now=100)
    assert found.cool("beta", 5, now=100) == 5
    assert found.cool("Beta AI", 2, now=101) == 4  # a shorter word takes nothing back
    assert only(found, 104) == ["beta/int4"]  # soonest, should anybody be asked after all
    assert only(found, 106) == ["beta/int4"]
    assert only(found, 130) == ["alpha", "beta/int4"]


@pytest.mark.parametrize("provider", [None, "Gamma"])
def test_a_word_of_the_router_itself_holds_for_all(provider: str | None) -> None:
    found = rotation()
    found.cool("Alpha", 3, now=100)
    assert found.cool(provider, 20, now=100) == 20
    assert only(found, 101) == ["beta/int4"]


def test_who_gave_this_prompt_nothing_is_left_out_for_it() -> None:
    found = rotation()
    assert only(found, 0, "Alpha") == ["beta/int4"]
    assert only(found, 0) == ["alpha", "beta/int4"]
    assert found.has_others(["Alpha"])
    assert not found.has_others(["Alpha", "Beta AI"])
    assert not found.has_others([None])


def test_a_server_without_providers_has_no_other() -> None:
    admission = admit([], OPENROUTER, needs=frozenset(), max_tokens=10)
    found = Rotation({"model": "m"}, admission)
    assert found.cool("m", 20, now=0) == 20
    assert not found.has_others(["m"])
    assert json.loads(found.tail((), 0)) == {"model": "m"}


@pytest.mark.parametrize("status", [429, 503])
def test_the_others_take_the_requests_of_a_provider_that_is_full(bench: Bench, status: int) -> None:
    bench.server.endpoints = TWO
    bench.provider = {"concurrency": 1}

    def script(text: str, nth: int) -> ScriptedReply:
        if text == "b" and nth == 0:
            return error(status, provider_name="Alpha", headers={"Retry-After": "2"})
        return good(provider="Beta AI", delay=2.1 if text == "d" else 0)

    bench.server.script = script
    assert all(row["error"] is None for row in bench.ask(*"abcde"))
    named = [tuple(body["provider"]["only"]) for body in bench.server.bodies]
    refused, slow = bench.server.asked.index("b"), bench.server.asked.index("d")  # and c, and b once more
    assert {*named[: refused + 1], *named[slow + 1 :]} == {("alpha", "beta/int4")}
    assert set(named[refused + 1 : slow + 1]) == {("beta/int4",)}
    assert named[slow + 1 :]


def test_a_provider_that_is_the_only_one_is_waited_for(bench: Bench) -> None:
    bench.provider = {"concurrency": 2}
    bench.server.script = lambda text, nth: (
        error(429, provider_name="Alpha", headers={"Retry-After": "0.5"})
        if (text, nth) == ("a", 0)
        else good(delay=0.05)
    )
    assert all(row["error"] is None for row in bench.ask(*"abcd"))
    assert sorted(bench.server.times)[2] - bench.server.times[0] >= 0.5


def test_nothing_twice_from_one_provider_goes_to_another(bench: Bench) -> None:
    bench.server.endpoints = TWO
    bench.provider = {"retry": {"repay": 5}}
    empty = {
        **completion("", tokens=0),
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ""}}],
    }
    bench.server.script = lambda _, nth: (
        ScriptedReply(body=json.dumps(empty).encode()) if nth < 2 else good(provider="Beta AI")
    )
    (row,) = bench.ask("a")
    assert row["error"] is None
    assert [body["provider"]["only"] for body in bench.server.bodies] == [["alpha", "beta/int4"]] * 2 + [["beta/int4"]]


def test_nothing_twice_from_the_only_provider_is_the_end(bench: Bench) -> None:
    bench.provider = {"retry": {"repay": 5}}
    empty = {
        **completion("", tokens=0),
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ""}}],
    }
    bench.server.script = lambda *_: ScriptedReply(body=json.dumps(empty).encode())
    (row,) = bench.ask("a")
    assert row["error"]["kind"] == "empty_zero_tokens"
    assert len(bench.server.asked) == 2
