"""Facts of response lines: the same account as the ledger's and reconstruct's, for whatever a line holds."""

import json
from typing import Any

import pytest

from pipeline.formats.completion.usage import usage_of
from pipeline.stages.audit.inputs.response_facts import ResponseFacts, read_facts
from tests.answers.test_parse import JUNK
from tests.conftest import ROOT

USAGE = {
    "prompt_tokens": 14,
    "completion_tokens": 8,
    "completion_tokens_details": {"reasoning_tokens": 341},
    "total_tokens": 363,
    "cost": 0.5,
    "prompt_tokens_details": {"cached_tokens": 4},
}
BODY: dict[str, Any] = {
    "provider": "P",
    "model": "m",
    "choices": [{"finish_reason": "stop", "message": {"content": "x", "refusal": "no"}}],
    "usage": USAGE,
}
FACTS = ResponseFacts("m", "P", "stop", None, None, "no", 14, 349, 341, 4, 0.5, None)


@pytest.mark.parametrize(
    "line",
    [
        {"id": "a", "response": BODY},
        {"id": "a", "response": json.dumps(BODY)},
        {"id": "a", "usage": USAGE, "response": BODY},
        {"id": "x", "custom_id": "a", "response": {"status_code": 200, "body": BODY}, "error": None},
        {"id": "a", **BODY},
    ],
)
def test_every_line_gives_the_same_facts(line: dict[str, Any]) -> None:
    assert read_facts(line) == FACTS


def test_the_account_is_that_of_the_other_stages() -> None:
    usage = usage_of(BODY)
    assert (FACTS.prompt_tokens, FACTS.completion_tokens, FACTS.cost_usd) == (
        usage.prompt,
        usage.completion,
        usage.cost.usd,
    )


def test_a_batch_line_of_a_failed_request_has_its_error() -> None:
    failed = {"custom_id": "a", "response": {"status_code": 400, "body": {"error": {"code": 400, "message": "long"}}}}
    assert read_facts(failed).error == "400: long"
    assert read_facts({"custom_id": "a", "response": {"status_code": 500, "body": {}}}).error == "status_code 500"
    assert read_facts({"custom_id": "a", "response": None, "error": {"message": "late"}}).error == "late"


def test_a_cost_without_the_upstream_bill_is_the_lines() -> None:
    usage = {**USAGE, "cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": None}}
    assert read_facts({"cost_usd": 0.25, "response": {**BODY, "usage": usage}}).cost_usd == 0.25


def test_nothing_raises() -> None:
    for value in JUNK:
        read_facts(value)
        for key in ("response", "usage", "error", "policy", "cost_usd", "latency_ms", "custom_id"):
            read_facts({"response": BODY, key: value})
            read_facts({"response": {**BODY, key: value}})


def test_the_public_case_of_a_batch_is_read() -> None:
    line = json.loads((ROOT / "tests/data/cases/batch_form.jsonl").read_text())
    assert read_facts(line) == ResponseFacts(provider="P", finish_reason="stop", prompt_tokens=10, completion_tokens=7)
