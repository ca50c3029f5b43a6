"""Servers that read a conversation otherwise than it was sent: what is accepted has the prompt that was read."""

from collections import Counter
from typing import Any

import pytest

from benchmarks.prompt_habits import UNDECIDABLE, scores
from pipeline.answers.prompts import NO_HABITS, Conversation, learn_prompts, read_prompt
from pipeline.core.errors import InputError

HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("target", ["kimi_k25", "qwen3", "deepseek_v3"])
def test_no_accepted_row_has_another_prompt_than_the_server_read(target: str) -> None:
    for name, tally in scores(target, 40, 7).items():
        assert not tally.get("known, wrong"), name
        assert not tally.get("weaker, wrong"), name
        if name in UNDECIDABLE:
            assert tally["flagged or rejected"] == 40, name
        else:
            assert tally.get("decided, known, right", 0) >= 0.97 * tally.get("decided", 0), name


def rendered(messages: list[dict[str, Any]], tools: Any, thinking: bool | None) -> list[int]:
    """Render a conversation as one id for each character; instant mode adds two."""
    text = "".join(message["content"] for message in messages if isinstance(message["content"], str))
    return [*map(ord, text), *([1, 1] if thinking is False else [])]


def test_a_prompt_without_a_bill_is_text_and_no_doubt() -> None:
    reading = read_prompt([1, 2], None, NO_HABITS, rendered, (HI, None, None))
    assert (reading.evidence, reading.delta, reading.reasons) == ("text", None, ())
    assert read_prompt([1, 2], 0, NO_HABITS, rendered, (HI, None, None)).reasons == ()


def test_a_constant_that_needs_no_text_is_a_habit_and_a_larger_one_is_hidden_text() -> None:
    small, large = (
        learn_prompts(Counter({1: 9}), Counter(), Counter()),
        learn_prompts(Counter({30: 9}), Counter(), Counter()),
    )
    conversation: Conversation = (HI, None, None)
    plain = rendered(*conversation)
    assert read_prompt(plain, len(plain) + 1, small, rendered, conversation).evidence == "count"
    hidden = read_prompt(plain, len(plain) + 30, large, rendered, conversation)
    assert hidden.reasons == ("prompt_count_mismatch",)
    assert "hidden_text" in hidden.notes[0]


def test_a_row_that_deviates_from_the_providers_constant_is_flagged() -> None:
    habits = learn_prompts(Counter({1: 9}), Counter(), Counter())
    reading = read_prompt([1, 2], 7, habits, rendered, (HI, None, None))
    assert reading.reasons == ("prompt_count_mismatch",)


def test_a_reading_that_cannot_be_rendered_is_none() -> None:
    def refuse(messages: Any, tools: Any, thinking: bool | None) -> list[int]:
        raise InputError("no")

    assert read_prompt([1, 2], 5, NO_HABITS, refuse, (HI, [{}], None)).reasons == ("prompt_count_mismatch",)
