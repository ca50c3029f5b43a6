"""The chat message of sampled ids, with each provider's habit."""

from typing import Any

import pytest

from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.standin.server.chat_message import logprob_entries, make_message, take_apart
from pipeline.standin.server.embedded_providers import PROVIDERS, EmbeddedProvider

BY_NAME = {provider.name: provider for provider in PROVIDERS}
THINK, END, OPEN, CLOSE, CALL, ARGUMENTS, DONE = 163_607, 163_586, 163_595, 163_596, 163_597, 163_598, 163_599


def ids_of(tokenizer: Tokenizer, *parts: str | int) -> list[int]:
    return [token for part in parts for token in ([part] if isinstance(part, int) else tokenizer.encode(part))]


def message(
    kimi: TargetRecord,
    tokenizer: Tokenizer,
    *parts: str | int,
    by: str = "Plain",
    with_tools: bool = True,
    stop: str | None = None,
) -> dict[str, Any]:
    apart = take_apart(kimi, ids_of(tokenizer, *parts), with_tools=with_tools)
    return make_message(tokenizer, BY_NAME[by], apart, stop, with_tools=with_tools)


def call(name: str, arguments: str) -> tuple[str | int, ...]:
    return (CALL, f"functions.{name}", ARGUMENTS, arguments, DONE)


def test_reasoning_and_content_come_apart_at_the_think_close(kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    found = message(kimi, tokenizer, "I add.\n", THINK, "\n\nFive. ", END)
    assert (found["reasoning"], found["content"]) == ("I add.\n", "\n\nFive. ")
    assert [block["text"] for block in found["reasoning_details"]] == ["I add.\n"]
    assert "tool_calls" not in found


def test_a_trimming_provider_strips_the_seams(kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    found = message(kimi, tokenizer, " I add.\n", THINK, "\n\nFive. ", END, by="Trimmer")
    assert (found["reasoning"], found["content"]) == (" I add.", "Five.")


def test_tool_calls_are_structured_with_arguments_byte_for_byte(kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    parts = (
        "Look.",
        THINK,
        "One moment.",
        OPEN,
        *call("get_time:0", '{"city":  "Oslo"}'),
        *call("search:1", '{"q": "\\u00e9"}'),
        CLOSE,
        END,
    )
    found = message(kimi, tokenizer, *parts)
    assert found["content"] == "One moment."
    assert found["tool_calls"] == [
        {
            "id": "functions.get_time:0",
            "type": "function",
            "index": 0,
            "function": {"name": "get_time", "arguments": '{"city":  "Oslo"}'},
        },
        {
            "id": "functions.search:1",
            "type": "function",
            "index": 1,
            "function": {"name": "search", "arguments": '{"q": "\\u00e9"}'},
        },
    ]


def test_a_raw_provider_leaves_the_markers_in_the_content(kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    found = message(kimi, tokenizer, "Look.", THINK, OPEN, *call("get_time:0", "{}"), CLOSE, END, by="Rawhide")
    assert found["content"] == (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )
    assert "tool_calls" not in found


def test_a_tool_section_ends_the_reasoning_and_a_call_cut_short_is_dropped(
    kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    found = message(
        kimi, tokenizer, "Look.", OPEN, *call("get_time:0", "{}"), CALL, "functions.search:1", ARGUMENTS, '{"q"'
    )
    assert (found["reasoning"], found["content"]) == ("Look.", None)
    assert [each["id"] for each in found["tool_calls"]] == ["functions.get_time:0"]


def test_without_tools_the_markers_vanish_and_their_text_stays(kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    found = message(kimi, tokenizer, "Look.", THINK, "So", OPEN, *call("f:0", "{}"), CLOSE, END, with_tools=False)
    assert found["content"] == "Sofunctions.f:0{}"


@pytest.mark.parametrize(
    ("parts", "reasoning", "content"),
    [
        (("Thinking and", THINK), "Thinking and", None),
        (("Thinking and",), "Thinking and", None),
        ((THINK, "Yes.", END), None, "Yes."),
        (("One", THINK, "two", THINK, "three", END), "One", "twothree"),
        ((END,), None, None),
        ((), None, None),
    ],
    ids=["nothing after", "no close", "no reasoning", "two closes", "only the end", "nothing"],
)
def test_odd_shapes(
    kimi: TargetRecord, tokenizer: Tokenizer, parts: tuple[str | int, ...], reasoning: str | None, content: str | None
) -> None:
    found = message(kimi, tokenizer, *parts)
    assert (found["reasoning"], found["content"]) == (reasoning, content)


def test_half_a_character_becomes_a_replacement_mark_and_its_bytes_stay_in_the_logprobs(
    kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    half = next(
        token
        for token in tokenizer.encode("👩")
        if tokenizer.token_bytes(token)[0] >= 0xF0 and len(tokenizer.token_bytes(token)) < 4
    )
    assert message(kimi, tokenizer, "a", THINK, half, END)["content"] == "\ufffd"
    (entry,) = logprob_entries(tokenizer, [half], [-1.5], [[(THINK, -0.25)]])
    assert bytes(entry["bytes"]) == tokenizer.token_bytes(half)
    assert entry["logprob"] == -1.5
    assert entry["top_logprobs"][0]["token"] == "</think>"


@pytest.mark.parametrize(
    ("parts", "field"), [(("One two. Three", THINK, "x", END), "content"), (("One two. Three",), "reasoning")]
)
def test_a_stop_text_is_cut_with_what_follows(
    kimi: TargetRecord, tokenizer: Tokenizer, parts: tuple[str | int, ...], field: str
) -> None:
    found = message(kimi, tokenizer, *parts, stop={"content": "x", "reasoning": " two"}[field])
    assert (found[field] or "") == {"content": "", "reasoning": "One"}[field]


def test_the_table_has_one_provider_for_each_habit_and_one_of_four_bits() -> None:
    def those(which: str) -> set[str]:
        return {provider.name for provider in PROVIDERS if getattr(provider, which)}

    assert those("trims") == {"Trimmer"}
    assert those("raw_tools") == {"Rawhide"}
    assert those("coarse") == {"Coarse"} == {provider.name for provider in PROVIDERS if provider.quantization == "fp4"}
    assert {provider.name for provider in PROVIDERS if not provider.bills_end} == {"Thrifty"}
    assert {name for provider in PROVIDERS for name in provider.extra_parameters} == {
        "return_token_ids",
        "logprobs",
        "top_logprobs",
    }
    assert isinstance(PROVIDERS[0], EmbeddedProvider)
