"""Counts and costs of every server's usage, as one account."""

from typing import Any

import pytest

from pipeline.formats.completion.cost import Cost
from pipeline.formats.completion.usage import read_usage, usage_of


def usage(completion: Any, reasoning: Any = None, total: Any = None, prompt: Any = 10) -> dict[str, Any]:
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **details}


@pytest.mark.parametrize(
    ("fields", "tokens", "notes"),
    [
        pytest.param(usage(8, 341, 359), 349, ("usage_disjoint",), id="beside, by the total"),
        pytest.param(usage(349, 341, 359), 349, (), id="inside, by the total"),
        pytest.param(usage(8, 341), 349, ("usage_disjoint",), id="beside, since it does not fit inside"),
        pytest.param(usage(349, 341), 349, (), id="inside, without a total"),
        pytest.param(usage(8, 8), 8, (), id="all of it reasoning"),
        pytest.param(usage(8, 341, 18), 8, (), id="the total confirms the completion"),
        pytest.param(usage(8, 341, 12), 349, ("usage_disjoint",), id="beside, the total too small for anything"),
        pytest.param(usage(349, 341, 12), 349, (), id="inside, the total too small for anything"),
        pytest.param(usage(9, 9, 28), 18, ("usage_disjoint",), id="beside, as much as the completion"),
        pytest.param(usage(8, None, 359), 349, ("billed_as_total_minus_prompt",), id="hidden, in the total alone"),
        pytest.param(usage(8, 100, 359), 349, ("billed_as_total_minus_prompt",), id="the total is the largest"),
        pytest.param(usage(8, 341, 100), 349, ("usage_disjoint",), id="the parts are the largest"),
        pytest.param(usage(8, 341, 359, prompt=None), 349, ("usage_disjoint",), id="prompt unknown"),
        pytest.param(usage(8.0, 341.0, 359.0), 349, ("usage_disjoint",), id="floats"),
        pytest.param(usage("8", "341", "359"), 349, ("usage_disjoint",), id="texts"),
        pytest.param(usage("8.0", 341, " 359 ", prompt="10"), 349, ("usage_disjoint",), id="texts of floats"),
        pytest.param(usage(8, -1, 18), 8, (), id="negative reasoning"),
        pytest.param(usage(8, 1 << 70, 18), 8, (), id="huge reasoning"),
        pytest.param({"input_tokens": 10, "output_tokens": 8}, 8, (), id="Anthropic"),
        pytest.param(
            {"prompt_tokens": 10, "completion_tokens": 5, "reasoning_tokens": 100, "total_tokens": 115},
            105,
            ("usage_disjoint",),
            id="reasoning at the top",
        ),
        pytest.param(
            {
                "input_tokens": 10,
                "output_tokens": 8,
                "output_tokens_details": {"reasoning_tokens": 5},
                "total_tokens": 18,
            },
            8,
            (),
            id="Responses API",
        ),
        pytest.param({"completion_tokens": None, "output_tokens": 8}, 8, (), id="null beside another name"),
    ],
)
def test_the_completion_counts_reasoning_wherever_it_stands(
    fields: dict[str, Any], tokens: int, notes: tuple[str, ...]
) -> None:
    found = read_usage(fields)
    assert (found.completion, found.notes) == (tokens, notes)


@pytest.mark.parametrize(
    "value",
    [12.5, -3, "-3", "12.5", "1e3", "1_0", "١٢", "", [], True, float("nan"), float("inf"), 1 << 70, 1e300, "9" * 5000],
)
def test_what_is_not_a_count_is_none_and_named(value: Any) -> None:
    found = read_usage({"prompt_tokens": value, "completion_tokens": value})
    assert (found.prompt, found.completion) == (None, None)
    assert found.notes[0].startswith("count_unusable: completion_tokens is ")


def test_cached_prompt_tokens_are_part_of_the_prompt() -> None:
    anthropic = {"input_tokens": 10, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 6, "output_tokens": 8}
    assert read_usage({**anthropic, "total_tokens": 28})[:4] == (20, 8, None, 4)
    openai = {"prompt_tokens": 20, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4}}
    assert read_usage(openai)[:4] == (20, 8, None, 4)
    assert read_usage({**openai, "prompt_tokens_details": None, "prompt_cache_hit_tokens": 4}).cached == 4


ONE, OTHER = {"prompt_tokens": 10, "completion_tokens": 8, "cost": 0.25}, {"prompt_tokens": 10, "completion_tokens": 3}


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ({"usage": ONE}, (10, 8)),
        ({"usage": None, "x_groq": {"usage": ONE}}, (10, 8)),
        ({"text": "x", "meta_info": ONE}, (10, 8)),
        ({"choices": [{"usage": ONE}]}, (10, 8)),
        ({"choices": [{"usage": ONE}, {"usage": OTHER}]}, (10, 11)),
        ({"choices": [{"usage": ONE}, {}]}, (None, None)),
        ({"usage": {"prompt_tokens": 7}, "choices": [{"usage": ONE}]}, (7, 8)),
        ({"usage": ONE, "choices": [{"usage": OTHER}]}, (10, 8)),
        ({"usage": [], "x_groq": [], "meta_info": 3, "choices": {"usage": ONE}}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_the_usage_is_found_wherever_servers_put_it(
    body: dict[str, Any], counts: tuple[int | None, int | None]
) -> None:
    assert usage_of(body)[:2] == counts


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({}, Cost()),
        ({"cost": None}, Cost()),
        ({"cost": 0.5}, Cost(0.5)),
        ({"cost": 0}, Cost(0.0)),
        ({"cost": 0, "is_byok": False, "cost_details": {"upstream_inference_cost": None}}, Cost(0.0)),
        ({"cost": 0, "cost_details": {"upstream_inference_cost": 0.3}}, Cost(0.3)),
        ({"cost": "0.5"}, Cost(text_usd=0.5)),
        ({"cost": "free"}, Cost()),
        ({"cost": "nan"}, Cost()),
        ({"cost": -1}, Cost()),
        ({"cost": float("nan")}, Cost()),
        ({"cost": 1e9}, Cost()),
        ({"cost": {"total": 1}}, Cost()),
        ({"cost": 0.1, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.3}}, Cost(0.4, own_key=True)),
        (
            {"cost": 0.1, "is_byok": True, "cost_details": {"upstream_inference_cost": None}},
            Cost(None, 0.1, own_key=True),
        ),
        ({"cost": 0.1, "is_byok": True}, Cost(None, 0.1, own_key=True)),
        ({"cost": None, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.3}}, Cost(own_key=True)),
        ({"cost": None, "is_byok": True}, Cost(own_key=True)),
        (
            {"cost": "0", "is_byok": True, "cost_details": {"upstream_inference_cost": "0.3"}},
            Cost(None, 0.0, 0.3, own_key=True),
        ),
        ({"cost": "0", "is_byok": True, "cost_details": {"upstream_inference_cost": None}}, Cost(own_key=True)),
        ({"cost": 0, "is_byok": "true", "cost_details": []}, Cost(own_key=True)),
    ],
)
def test_a_cost_is_whole_only_if_every_part_is_a_number(fields: dict[str, Any], cost: Cost) -> None:
    assert read_usage(fields).cost == pytest.approx(cost)
