"""The server over real HTTP: equal bytes for equal requests, routing, errors, and its life beside its parent."""

import concurrent.futures
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import ProviderError
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.standin.server import serve
from pipeline.standin.server.embedded_providers import MODEL, PROVIDERS
from pipeline.standin.server.server_process import identity, running
from tests.conftest import ROOT
from tests.polling import TIMEOUT_S, wait_until
from tests.stand_in import StandIn

pytestmark = pytest.mark.slow
TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Time",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def url(stand_in: StandIn) -> Iterator[str]:
    with running(stand_in.model, stand_in.record) as address:
        yield address


def send(url: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        url + "/chat/completions", data, {"Content-Type": "application/json", **(headers or {})}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def ask(text: str = "Ada has 3 coins and finds 4 more. How many is that?", **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 48,
        "temperature": 0.8,
        **more,
    }


def only(name: str, **more: Any) -> dict[str, Any]:
    return ask(provider={"only": [name]}, **more)


def complete(url: str, body: dict[str, Any]) -> dict[str, Any]:
    status, data = send(url, body)
    assert status == 200, data
    return dict(json.loads(data))


def get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        return dict(json.loads(response.read())["data"])


def test_a_request_has_the_same_bytes_alone_and_in_a_crowd(url: str) -> None:
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 0},
        {"top_p": 0.7},
        {"tools": [TOOL]},
        {"logprobs": True, "top_logprobs": 3, "return_token_ids": True},
    )
    bodies = [ask(f"Number {number}?", seed=number, **kinds[number % len(kinds)]) for number in range(40)]
    alone = [send(url, body) for body in bodies[:10]]
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        crowd = list(pool.map(lambda body: send(url, body), bodies[::-1]))[::-1]
    assert crowd[:10] == alone
    assert {status for status, _ in crowd} == {200}


def test_the_order_of_keys_decides_nothing_and_the_seed_decides(url: str) -> None:
    body = ask(seed=1)
    assert send(url, dict(reversed(body.items()))) == send(url, body)
    assert json.loads(send(url, ask(seed=2))[1])["x_truth"] != json.loads(send(url, body)[1])["x_truth"]


def test_a_body_has_the_shape_of_a_routers(url: str) -> None:
    status, data = send(url, ask(), {"X-OpenRouter-Metadata": "enabled"})
    body = json.loads(data)
    assert status == 200
    assert body["id"].startswith(f"gen-{body['created']}-")
    assert (body["object"], body["model"]) == ("chat.completion", MODEL)
    provider = next(provider for provider in PROVIDERS if provider.name == body["provider"])
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    cost = usage["prompt_tokens"] * Fraction(provider.prompt_price) + usage["completion_tokens"] * Fraction(
        provider.completion_price
    )
    assert usage["cost"] == float(cost)
    assert {
        entry["provider"] for entry in body["openrouter_metadata"]["endpoints"]["available"] if entry["selected"]
    } == {provider.name}
    assert "openrouter_metadata" not in json.loads(send(url, ask())[1])


def test_the_provider_that_returns_ids_returns_those_that_were_sampled(url: str, tokenizer: Tokenizer) -> None:
    body = complete(url, only("exact", return_token_ids=True))
    assert body["choices"][0]["token_ids"] == body["x_truth"]["output_ids"]
    assert tokenizer.show(body["prompt_token_ids"][-1]) == "<think>"
    assert len(body["prompt_token_ids"]) == body["usage"]["prompt_tokens"]
    assert "token_ids" not in complete(url, only("plain", return_token_ids=True))["choices"][0]
    assert "token_ids" not in complete(url, only("exact"))["choices"][0]


def test_logprobs_have_the_true_bytes_of_every_sampled_id(url: str, tokenizer: Tokenizer) -> None:
    body = complete(url, only("bytewise", logprobs=True, top_logprobs=2))
    entries = body["choices"][0]["logprobs"]["content"]
    truth = body["x_truth"]["output_ids"]
    assert len(entries) == len(truth)
    for entry, token in zip(entries, truth, strict=True):
        assert bytes(entry["bytes"]) == (
            tokenizer.special_texts[token].encode()
            if token in tokenizer.special_texts
            else tokenizer.token_bytes(token)
        )
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) <= 2
    assert complete(url, only("plain", logprobs=True))["choices"][0]["logprobs"] is None


def test_greedy_takes_what_the_logprobs_call_likeliest(url: str) -> None:
    body = complete(url, only("bytewise", logprobs=True, top_logprobs=1, temperature=0))
    for entry in body["choices"][0]["logprobs"]["content"]:
        assert entry["bytes"] == entry["top_logprobs"][0]["bytes"]


def test_the_provider_that_does_not_bill_the_end_token_is_one_short_only_where_there_is_one(url: str) -> None:
    seen = set()
    for number in range(30):
        body = complete(url, only("thrifty", seed=number, max_tokens=160))
        truth, finish = body["x_truth"]["output_ids"], body["choices"][0]["finish_reason"]
        assert body["usage"]["completion_tokens"] == len(truth) - (finish == "stop")
        seen.add(finish)
    assert "stop" in seen


def test_length_ends_an_answer_without_an_end_token(url: str) -> None:
    body = complete(url, only("plain", max_tokens=5))
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == len(body["x_truth"]["output_ids"]) == 5


def test_a_stop_text_ends_the_answer_at_the_token_that_completes_it(url: str, tokenizer: Tokenizer) -> None:
    free = complete(url, only("plain", temperature=0))
    text = free["choices"][0]["message"]["reasoning"]
    stop = text[4:9]
    body = complete(url, only("plain", temperature=0, stop=[stop]))
    choice, ids = body["choices"][0], body["x_truth"]["output_ids"]
    assert choice["finish_reason"] == "stop"
    assert ids == free["x_truth"]["output_ids"][: len(ids)]
    assert stop in tokenizer.decode_bytes(ids).decode()
    assert stop not in tokenizer.decode_bytes(ids[:-1]).decode()
    assert choice["message"]["reasoning"] == (text.partition(stop)[0] or None)


def test_the_default_spreads_requests_over_the_providers_and_rules_leave_some(url: str) -> None:
    rules = {"quantizations": ["bf16", "int4"], "ignore": ["rawhide"], "max_price": {"completion": 2.5}}
    free = {complete(url, ask(seed=number, max_tokens=1))["provider"] for number in range(80)}
    kept = {complete(url, ask(seed=number, max_tokens=1, provider=rules))["provider"] for number in range(20)}
    assert free == {provider.name for provider in PROVIDERS}
    assert kept == {"Plain"}
    assert complete(url, ask(provider={"order": ["coarse/fp4", "plain"]}, max_tokens=1))["provider"] == "Coarse"
    assert (
        complete(url, ask(return_token_ids=True, provider={"require_parameters": True}, max_tokens=1))["provider"]
        == "Exact"
    )


@pytest.mark.parametrize(
    ("rules", "cause"),
    [
        ({"only": ["nobody"]}, "only"),
        ({"quantizations": ["fp32"]}, "quantization"),
        ({"max_price": {"prompt": "0.1"}}, "max_price"),
        ({"ignore": [provider.tag for provider in PROVIDERS]}, "ignore"),
        ({"order": ["nobody"], "allow_fallbacks": False}, "order"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_rules_that_leave_nobody_are_a_404_that_names_the_rule(url: str, rules: dict[str, Any], cause: str) -> None:
    status, data = send(url, ask(provider=rules))
    error = json.loads(data)["error"]
    assert (status, error["code"]) == (404, 404)
    assert error["metadata"]["error_type"] == "constraint_filtered"
    assert error["availability"]["excluded_by"] == [cause]
    assert len(error["availability"]["affected_providers"]) == len(PROVIDERS)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (ask(model="moonshotai/kimi-k2.5"), "moonshotai/kimi-k2.5 is not a valid model ID"),
        (ask(temperature=3), "temperature"),
        (ask(temperature="hot"), "temperature"),
        (ask(top_p=0), "top_p"),
        (ask(max_tokens=0), "max_tokens"),
        (ask(max_tokens=1025), "at most 1024"),
        (ask(n=2), "n: only 1"),
        (ask(stream=True), "stream"),
        (ask(stop=["a", "b", "c", "d", "e"]), "at most 4"),
        (ask(stop=""), "empty string"),
        (ask(provider={"onyl": ["plain"]}), "provider.onyl"),
        ({"model": MODEL, "messages": []}, "messages"),
        ({"model": MODEL, "messages": "hi"}, "messages"),
        (ask("word " * 5000), "context"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_malformed_request_is_a_400_that_says_what_is_wrong(url: str, body: Any, complaint: str) -> None:
    status, data = send(url, body)
    error = json.loads(data)["error"]
    assert (status, error["code"]) == (400, 400)
    assert complaint in error["message"]


def test_a_long_answer_waits_for_room_and_short_ones_go_on(url: str) -> None:
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        sizes = [20, 900, 20, 700, 20, 20]
        answers = list(
            pool.map(lambda size: complete(url, ask(seed=size, max_tokens=size, provider={"only": ["plain"]})), sizes)
        )
    assert all(len(answer["x_truth"]["output_ids"]) <= size for answer, size in zip(answers, sizes, strict=True))


def test_the_lists_have_prices_as_strings_and_what_each_provider_supports(url: str) -> None:
    endpoints = {entry["tag"]: entry for entry in get(f"{url}/models/{MODEL}/endpoints")["endpoints"]}
    assert set(endpoints) == {provider.tag for provider in PROVIDERS}
    assert endpoints["coarse/fp4"]["quantization"] == "fp4"
    assert isinstance(endpoints["plain/int4"]["pricing"]["completion"], str)
    assert "return_token_ids" in endpoints["exact/bf16"]["supported_parameters"]
    assert "return_token_ids" not in endpoints["plain/int4"]["supported_parameters"]
    assert get(f"{url}/key")["limit_remaining"] is None
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(f"{url}/models/some/other/endpoints")


def test_identity_follows_the_weights(stand_in: StandIn, tmp_path: Path) -> None:
    for path in stand_in.model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    same = identity(tmp_path)
    assert same == identity(stand_in.model)
    (tmp_path / "config.json").write_text("{}")
    assert identity(tmp_path) != same


def test_a_server_that_cannot_start_says_why(stand_in: StandIn, tmp_path: Path) -> None:
    with (
        pytest.raises(ProviderError, match=r"did not start: it ended with code 2:\nerror: .*config\.json"),
        running(tmp_path, stand_in.record),
    ):
        pass


def test_a_port_that_is_taken_is_named(stand_in: StandIn) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            serve.__name__,
            "--model",
            str(stand_in.model),
            "--record",
            str(stand_in.record),
            "--port",
            str(port),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert (
        done.stderr == f"error: the embedded server cannot listen on 127.0.0.1:{port}: another process uses it; "
        "choose another --port, "
        "or 0 for any free one\n"
    )


def listens(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/key", timeout=TIMEOUT_S):
            return True
    except (OSError, http.client.HTTPException):  # gone before, or in the midst of its answer
        return False


def test_the_server_ends_with_its_block_also_after_an_error(stand_in: StandIn) -> None:
    with pytest.raises(KeyError), running(stand_in.model, stand_in.record) as address:
        assert listens(address)
        raise KeyError("something else went wrong")
    assert not listens(address)


def test_the_server_ends_when_its_parent_is_killed(stand_in: StandIn) -> None:
    program = (
        "import sys, time; from pathlib import Path; from pipeline.standin.server.server_process import running\n"
        "with running(Path(sys.argv[1]), Path(sys.argv[2])) as url:\n    print(url, flush=True)\n    time.sleep(300)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(stand_in.model), str(stand_in.record)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        address = parent.stdout.readline().strip()
        assert listens(address)
        os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: not listens(address))
