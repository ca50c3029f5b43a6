"""An answer's key holds everything that decides the answer, and nothing else."""

from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.stages.generate.config import ProviderSection, SamplingSection
from pipeline.stages.generate.requests.request import RequestBuilder

MESSAGES = [{"role": "user", "content": "x"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def key(
    provider: dict[str, Any] | None = None,
    sampling: dict[str, Any] | None = None,
    *,
    send_tools: bool = True,
    identity: str | None = None,
    tools: Any = TOOLS,
) -> str:
    section = ProviderSection.model_validate(
        {"kind": "openrouter", "base_url": "http://a/v1", "model": "m", **(provider or {})}
    )
    chosen = SamplingSection.model_validate({"temperature": 1, "top_p": 1, "max_tokens": 10, **(sampling or {})})
    return RequestBuilder(chosen, section, send_tools=send_tools, identity=identity).key(MESSAGES, tools)


@pytest.mark.parametrize(
    "changes",
    [
        {"provider": {"model": "n"}},
        {"provider": {"allow": ["a"]}},
        {"provider": {"deny": ["a"]}},
        {"provider": {"quantizations": ["fp8"]}},
        {"provider": {"evidence": {"logprobs": True}}},
        {"provider": {"kind": "openai"}},
        {"sampling": {"temperature": 0.9}},
        {"sampling": {"top_p": 0.9}},
        {"sampling": {"max_tokens": 11}},
        {"sampling": {"seed": 1}},
        {"sampling": {"extra": {"top_k": 1}}},
        {"send_tools": False},
        {"identity": "retrained"},
        {"tools": None},
    ],
    ids=str,
)
def test_what_decides_the_answer_changes_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


@pytest.mark.parametrize(
    "provider",
    [
        {"concurrency": 5},
        {"base_url": "http://b/v1"},
        {"timeout": {"total": 5}},
        {"retry": {"attempts": 2}},
        {"max_price": {"prompt": 5}},
        {"api_key_env": "OTHER"},
        {"answers_as": ["m-1"]},
        {"errors": "unbilled"},
        {"wait_for_store": False},
    ],
    ids=str,
)
def test_what_does_not_decide_the_answer_leaves_the_key_alone(provider: dict[str, Any]) -> None:
    assert key(provider) == key()


def test_the_order_of_names_in_the_policy_does_not_matter() -> None:
    assert key({"allow": ["a", "b"]}) == key({"allow": ["b", "a"]})


def test_an_openai_server_is_known_by_its_address() -> None:
    assert key({"kind": "openai"}) != key({"kind": "openai", "base_url": "http://b/v1"})


EXTRA: dict[str, list[dict[str, Any]]] = {
    "has a key of its own": [
        {"model": "x"},
        {"max_tokens": 5},
        {"max_completion_tokens": 5},
        {"max_new_tokens": 5},
        {"max_output_tokens": 5},
        {"options": {"num_predict": 5}},
        {"provider": {}},
        {"Temperature": 0},
        {"return_token_ids": True},
    ],
    "can cost more than tokens": [
        {"plugins": [{"id": "web"}]},
        {"web_search_options": {}},
        {"enable_search": True},
        {"service_tier": "priority"},
    ],
    "decides who answers": [{"models": ["a", "b"]}, {"route": "fallback"}, {"preset": "p"}, {"extra_body": {"n": 2}}],
    "asks for several answers": [{"n": 2}, {"n": 1}, {"best_of": 4}],
    "changes what the model is asked": [
        {"transforms": ["middle-out"]},
        {"tools": []},
        {"messages": []},
        {"functions": []},
    ],
    "changes the form of the answer": [{"stream": True}],
    "ends an answer where its bill cannot tell": [
        {"stop": ["x"]},
        {"Stop_Token_Ids": [5]},
        {"ignore_eos": True},
        {"stop_sequences": ["x"]},
        {"include_stop_str_in_output": True},
        {"eos_token_id": 5},
        {"sampling_params": {"stop": ["x"]}},
        {"options": {"stop": ["x"]}},
    ],
    "not JSON": [{"min_p": 2**70}],
}


@pytest.mark.parametrize(("why", "extra"), [(why, extra) for why, cases in EXTRA.items() for extra in cases], ids=str)
def test_extra_fields_cannot_get_round_the_budget_or_the_policy(why: str, extra: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=why):
        SamplingSection.model_validate({"temperature": 1, "top_p": 1, "max_tokens": 10, "extra": extra})


def test_extra_fields_that_only_decide_sampling_are_sent() -> None:
    extra = {
        "top_k": 40,
        "min_p": 0.1,
        "reasoning": {"effort": "low"},
        "chat_template_kwargs": {"thinking": True},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"stop": {}}}}},
    }
    assert SamplingSection(temperature=1, top_p=1, max_tokens=10, extra=extra).extra == extra


@pytest.mark.parametrize("model", ["a/b:online", "openrouter/auto", "@preset/mine", "a/b@preset/mine"])
def test_a_model_name_cannot_buy_extras_or_leave_the_choice_to_the_router(model: str) -> None:
    with pytest.raises(ValidationError, match="model"):
        ProviderSection(kind="openrouter", model=model)
    assert ProviderSection(kind="openai", base_url="http://a/v1", model=model).model == model


@pytest.mark.parametrize("url", ["ftp://x", "https://user:secret@host/v1", "https://host/v1?key=secret", "host/v1"])
def test_an_address_holds_no_secret(url: str) -> None:
    with pytest.raises(ValidationError, match="base_url"):
        ProviderSection.model_validate({"kind": "openai", "base_url": url, "model": "m"})
