"""The list of endpoints against the policy: who may answer, and at which price."""

from typing import Any, NamedTuple

import pytest
from pydantic import ValidationError

from pipeline.core.sections import mistake
from pipeline.formats.completion.body import provider_of
from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.provider.policy import (
    admit,
    normal,
    objections,
    other_provider,
    parse_endpoints,
    provider_block,
)
from tests.stages.generate.chat_server import ENDPOINT

NEEDS = frozenset({"temperature", "top_p", "max_tokens", "seed"})


def section(**changes: Any) -> ProviderSection:
    return ProviderSection.model_validate({"kind": "openrouter", "base_url": "http://x/v1", "model": "m", **changes})


def listing(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"endpoints": [{**ENDPOINT, **change} for change in changes]}}


class Case(NamedTuple):
    label: str
    endpoint: dict[str, Any]
    policy: dict[str, Any]
    why: str | None


CASES = [
    Case("as it is", {}, {}, None),
    Case("fp4", {"quantization": "fp4"}, {}, "quantization fp4"),
    Case("nvfp4", {"quantization": "nvfp4"}, {}, "quantization nvfp4"),
    Case("mxfp4", {"quantization": "mxfp4"}, {}, "quantization mxfp4"),
    Case("fp4 by its name", {"quantization": None, "tag": "together/fp4"}, {}, "fp4 by its name"),
    Case("fp4 where the config admits it", {"quantization": "fp4"}, {"quantizations": ["fp4"]}, None),
    Case("unknown format", {"quantization": None}, {}, None),
    Case("another format than admitted", {"quantization": "fp8"}, {"quantizations": ["int4"]}, "quantization fp8"),
    Case(
        "allowed by display name",
        {"provider_name": "Moonshot AI", "tag": "moonshotai"},
        {"allow": ["moonshotai"]},
        None,
    ),
    Case("allowed by the base of its tag", {"tag": "alpha/turbo"}, {"allow": ["alpha"]}, None),
    Case("not on the list", {}, {"allow": ["Beta"]}, "not in provider.allow"),
    Case("denied", {"tag": "alpha/turbo"}, {"deny": ["alpha/turbo"]}, "in provider.deny"),
    Case("too dear to answer", {}, {"max_price": {"completion": 1.99}}, "completion price 2 is above"),
    Case("at the limit", {}, {"max_price": {"completion": 2.0, "prompt": 1.0}}, None),
    Case("a price that varies", {"pricing": {"prompt": "-1", "completion": "-1"}}, {}, "price is not stated"),
    Case("a price that is no number", {"pricing": {"prompt": "free", "completion": "0"}}, {}, "price is not stated"),
    Case("no seed", {"supported_parameters": ["temperature", "top_p", "max_tokens"]}, {}, "does not support seed"),
    Case("parameters not listed", {"supported_parameters": None}, {}, None),
    Case("answers too short", {"max_completion_tokens": 99}, {}, "answers at most 99 tokens"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_table(case: Case) -> None:
    (endpoint,) = parse_endpoints(listing(case.endpoint))
    found = "; ".join(objections(endpoint, section(**case.policy), needs=NEEDS, max_tokens=100))
    assert (case.why in found) if case.why else (found == "")


@pytest.mark.parametrize(
    "document",
    [
        [1],
        {"data": [1]},
        {"data": "x"},
        {"data": {"endpoints": 5}},
        {"data": {"endpoints": [1, None]}},
        listing({"pricing": [1]}),
        listing({"pricing": {"overrides": 5}}),
    ],
)
def test_a_list_of_another_shape_admits_nobody(document: Any) -> None:
    assert not admit(parse_endpoints(document), section(), needs=NEEDS, max_tokens=100).admitted


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://[::1/v1",
        "http://x:99999/v1",
        "http://x:y/v1",
        "http://x y/v1",
        "http://x/v1#a",
        "http:///v1",
        "x/v1",
    ],
)
def test_an_address_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        section(base_url=url)


@pytest.mark.parametrize("url", ["http://[::1]:8000/v1", "https://openrouter.ai/api/v1", "http://127.0.0.1:1/v1/"])
def test_an_address_that_can_be_is_taken(url: str) -> None:
    assert section(base_url=url).base_url == url.rstrip("/")


def test_the_dearest_admitted_price_bounds_a_request_tiers_and_cache_writes_included() -> None:
    tiers = {
        "prompt": "0.000001",
        "input_cache_write": "0.000003",
        "completion": "0.000002",
        "overrides": [{"utc_start": 8, "completion": "0.000005"}],
    }
    found = admit(
        parse_endpoints(listing({"pricing": tiers, "tag": "a"}, {"tag": "b"})), section(), needs=NEEDS, max_tokens=100
    )
    assert (found.price.prompt, found.price.completion) == (3_000_000, 5_000_000)


def test_a_refused_endpoint_raises_no_price() -> None:
    dear = {"pricing": {"prompt": "1", "completion": "1"}, "quantization": "fp4"}
    found = admit(parse_endpoints(listing({}, dear)), section(), needs=NEEDS, max_tokens=100)
    assert found.price.completion == 2_000_000
    assert len(found.refused) == 1


def test_the_request_pins_the_price_that_was_seen() -> None:
    found = admit(
        parse_endpoints(listing({})), section(max_price={"prompt": 10, "completion": 10}), needs=NEEDS, max_tokens=100
    )
    block = provider_block(section(), found)
    assert block["max_price"] == {"prompt": 1.0, "completion": 2.0}
    assert block["require_parameters"] is True


@pytest.mark.parametrize(
    "document", [None, [], {}, {"data": None}, {"data": {"endpoints": None}}, {"data": {"endpoints": ["x", 1]}}]
)
def test_a_list_of_another_shape_lists_nothing(document: Any) -> None:
    assert parse_endpoints(document) == []


def test_names_compare_without_case_spaces_and_marks() -> None:
    assert normal("Moonshot AI") == normal("moonshotai") == normal("moonshot-ai")


def test_who_answered_is_in_the_body_or_in_the_routers_metadata() -> None:
    metadata = {"endpoints": {"available": [{"provider": "A", "selected": False}, {"provider": "B", "selected": True}]}}
    assert provider_of({"provider": "P"}) == "P"
    assert provider_of({"openrouter_metadata": metadata}) == "B"
    assert provider_of({"openrouter_metadata": {"endpoints": 3}}) is None


def test_without_a_list_the_allowed_names_decide() -> None:
    assert other_provider("Alpha", section(allow=["alpha"]), []) is None
    assert other_provider("Beta", section(allow=["alpha"]), []) is not None
    assert other_provider("Beta", section(), []) is None
    assert other_provider("Beta", section(deny=["beta"]), []) is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quantizations", ["fp9"]),
        ("quantizations", ["FP4"]),
        ("api_key_env", ""),
        ("api_key_env", "sk-x"),
        ("data_collection", "no"),
    ],
)
def test_a_word_that_means_nothing_is_no_policy_and_what_may_be_a_key_is_not_shown(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as found:
        section(**{name: value})
    said = mistake(found.value.errors()[0])
    assert said.startswith(name)
    assert "sk-x" not in said
