"""For every check a planted fault, found in its row at its position, beside clean rows that stay silent."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from pipeline.audit.checks.catalog import CHECKS
from pipeline.audit.config import ExpectSection, TokenPrice
from pipeline.audit.context import Context
from pipeline.audit.grams import gram_hashes, sequence_hash
from pipeline.audit.heldout import Heldout
from pipeline.schema.tokens import Segment, TokenRow
from pipeline.tokens import Tokenizer
from tests.audit.rows import CALL_ARGS, CALL_OPEN, END, PROMPT, THINK_CLOSE, TOOLS_CLOSE, answer, assemble, batch, clean_rows, complaints
from tests.audit.test_structure import SEVEN, spoiled

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    },
}
ASKED = {"messages": [{"role": "user", "content": "hello"}], "tools": [WEATHER]}
USAGE = {"prompt_tokens": 1000, "completion_tokens": 2000, "cost": 0.0046, "completion_tokens_details": {"reasoning_tokens": 4}}
RESPONSE = {"provider": "alpha", "model": "kimi", "response": {"usage": USAGE, "choices": [{"message": {"content": "Five."}}]}}
LOREM = "Seven ships sailed past the old lighthouse before the storm broke over the northern bay and scattered every gull."


@dataclass
class Case:
    """A fault: the row that has it, what came with the row, and where it is."""

    row: TokenRow
    position: int | None = None
    prompt: dict[str, Any] = field(default_factory=lambda: ASKED)
    response: dict[str, Any] = field(default_factory=lambda: RESPONSE)
    settings: dict[str, Any] = field(default_factory=dict)
    context: Callable[[Context], Context] = lambda context: context


def with_ids(row: TokenRow, ids: list[int]) -> TokenRow:
    return replace(row, completion_ids=ids, segments=[])


def first(ids: list[int], token: int) -> int:
    return ids.index(token)


def structure_cases(tokenizer: Tokenizer) -> dict[str, list[Case]]:
    return {name: [Case(replace(row, segments=[]), position)] for name, (row, position) in spoiled(tokenizer).items()}


def sanity_cases(tokenizer: Tokenizer) -> dict[str, list[Case]]:
    row = answer(tokenizer)
    ids, close = row.completion_ids, row.completion_ids.index(THINK_CLOSE)
    text, _ = assemble(tokenizer, [("r", "Hm."), ("c", THINK_CLOSE), ("x", "one\ufffdtwo")])
    bell, _ = assemble(tokenizer, [("r", "Hm."), ("c", THINK_CLOSE), ("x", "one"), ("y", "\x07"), ("z", "two"), ("e", END)])
    half = next(token for token in range(1000) if tokenizer.token_bytes(token) == b"\xe2")
    bad_segments = [Segment("reasoning", 0, close + 1), Segment("content", close + 1, len(ids) - 1), Segment("end", len(ids) - 1, len(ids))]
    return {
        "ids_in_vocabulary": [
            Case(with_ids(row, [*ids[:2], 163840, *ids[2:]]), 2),
            Case(with_ids(row, [*ids[:2], -1, *ids[2:]]), 2),
            Case(replace(row, prompt_ids=[1, 999999]), None),
        ],
        "special_ids": [Case(with_ids(row, [*ids[:3], 163700, *ids[3:]]), 3), Case(with_ids(row, [*ids[:3], 163587, *ids[3:]]), 3)],
        "segments": [
            Case(replace(row, segments=bad_segments), close),
            Case(replace(row, segments=row.segments[:-1]), len(ids) - 1),
            Case(replace(row, segments=[row.segments[0], *row.segments[2:]]), close),
            Case(replace(row, segments=[Segment("reasoning", 0, close), Segment("think_close", close, len(ids))]), close),
        ],
        "valid_utf8": [Case(with_ids(row, [*ids[:-1], half, *ids[-1:]]), len(ids) - 1)],
        "replacement_characters": [Case(with_ids(row, [*text, END]), next(i for i, t in enumerate(text) if b"\xef\xbf\xbd"[:1] in tokenizer.token_bytes(t)))],
        "control_characters": [Case(with_ids(row, bell), bell.index(tokenizer.encode("\x07")[0]))],
    }


def outcome_cases(tokenizer: Tokenizer) -> dict[str, list[Case]]:
    row = answer(tokenizer)
    call = answer(tokenizer, calls=[("get_weather", {"city": "Oslo"})])
    only_content = [*tokenizer.encode("Five."), END]
    required, forbidden = ({"reasoning": word, "tool_calls": word} for word in ("required", "forbidden"))

    def expect(words: dict[str, Any]) -> Callable[[Context], Context]:
        return lambda context: replace(context, expect=ExpectSection(**words))

    return {
        "provider_policy": [
            Case(row, context=lambda context: replace(context, allow=("beta/fp8",))),
            Case(row, context=lambda context: replace(context, deny=("Alpha",))),
            Case(row, response={**RESPONSE, "policy": "quantization nvfp4 is not admitted"}),
        ],
        "model_name": [Case(row, settings={"admit": ["kimi-k2.5"]})],
        "answer_error": [Case(row, response={"error": {"kind": "http_502", "message": "bad gateway"}}), Case(replace(row, finish_reason="error"))],
        "rejected": [Case(replace(row, status="reject", reason="no_think_close", completion_ids=[], segments=[]))],
        "truncated": [Case(replace(row, finish_reason="length"), len(row.completion_ids) - 1)],
        "content_filter": [Case(replace(row, finish_reason="content_filter"))],
        "refusal": [
            Case(answer(tokenizer, content="I\u2019m sorry, but I can\u2019t help with that.")),
            Case(row, response={"response": {"choices": [{"message": {"refusal": "No."}}]}}),
        ],
        "empty_content": [Case(answer(tokenizer, content=" \n"))],
        "expect_reasoning": [Case(with_ids(row, only_content), context=expect(required)), Case(row, context=expect(forbidden))],
        "expect_tool_calls": [
            Case(row, context=expect(required)),
            Case(call, call.completion_ids.index(CALL_OPEN), context=expect(forbidden)),
        ],
    }


def tool_cases(tokenizer: Tokenizer) -> dict[str, list[Case]]:
    call = answer(tokenizer, calls=[("get_weather", {"city": "Oslo"})])
    ids = call.completion_ids
    opened = first(ids, CALL_OPEN)
    args = next(segment.start for segment in call.segments if segment.kind == "call_args")

    def calling(name: str, arguments: Any) -> TokenRow:
        return answer(tokenizer, calls=[(name, arguments)])

    unclosed = [token for token in ids if token != TOOLS_CLOSE]
    twice = answer(tokenizer, calls=[("get_weather", {"city": "Oslo"})], prompt_ids=[CALL_OPEN, *PROMPT])
    return {
        "tool_markup": [
            Case(with_ids(call, unclosed), len(unclosed) - 2),
            Case(with_ids(call, [token for token in ids if token != CALL_OPEN]), first(ids, CALL_ARGS) - 1),
        ],
        "tool_json": [Case(calling("get_weather", '{"city": "Oslo"'), args), Case(calling("get_weather", "[1]"), args)],
        "tool_name": [Case(calling("get_time", {"city": "Oslo"}), opened)],
        "tool_schema": [Case(calling("get_weather", {"town": "Oslo"}), args), Case(calling("get_weather", {"city": 7}), args)],
        "tool_ids": [Case(twice, opened + 1), Case(with_ids(call, [*ids[: opened + 1], *tokenizer.encode("get_weather"), *ids[args - 1 :]]), opened + 1)],
    }


def billing_cases(tokenizer: Tokenizer) -> dict[str, list[Case]]:
    row = answer(tokenizer)
    long = answer(tokenizer, reasoning=" ".join(f"Step {i} of the plan." for i in range(20)))
    prices = {"alpha": TokenPrice(prompt=0.6, completion=2.0)}
    dear = {**RESPONSE, "response": {"usage": {**USAGE, "cost": 0.0056}}}
    return {
        "count_difference": [Case(replace(row, count_delta=65, billed_tokens=390)), Case(replace(row, count_delta=-65, billed_tokens=390))],
        "reasoning_count": [Case(long, first(long.completion_ids, THINK_CLOSE))],
        "cost": [Case(row, response=dear, settings={"prices": prices})],
    }


def content_cases(tokenizer: Tokenizer) -> dict[str, list[Case]]:
    row = answer(tokenizer)
    ids = row.completion_ids
    loop = [*ids[:2], *[22931] * 65, *ids[2:]]
    verse = tokenizer.encode(LOREM)
    phrase = verse[:20] * 6
    numbers = " ".join(str(i * i) for i in range(60))
    long = answer(tokenizer, "long", content=LOREM * 3)
    nearly = answer(tokenizer, "nearly", content=LOREM * 3 + " The end.")
    heldout = Heldout(13, frozenset([sequence_hash(np.array(tokenizer.encode("hello"), np.int32))]), np.unique(gram_hashes(np.array(verse, np.int32), 13)))
    held = answer(tokenizer, content=LOREM)
    return {
        "token_loop": [Case(with_ids(row, loop), first(loop, 22931))],
        "repeated_ngrams": [Case(with_ids(row, [*ids[:3], *phrase, *ids[3:]]), 3 + 20)],
        "compression": [Case(with_ids(row, [*ids[:3], *tokenizer.encode("ab " * 400), *ids[3:]]))],
        "language": [Case(answer(tokenizer, content="Ответ на этот вопрос равен пяти, и это совсем просто."))],
        "contamination": [
            Case(row, context=lambda context: replace(context, heldout=heldout)),
            Case(
                held,
                first(held.completion_ids, THINK_CLOSE) + 1,
                prompt={"messages": [{"role": "user", "content": numbers}]},
                context=lambda context: replace(context, heldout=heldout),
            ),
            Case(
                row,
                prompt={"messages": [{"role": "user", "content": [{"type": "text", "text": "Listen: " + LOREM}]}]},
                context=lambda context: replace(context, heldout=heldout),
            ),
        ],
        "duplicate_prompts": [Case(replace(clean_rows(tokenizer, 1)[0], completion_ids=ids, segments=[]))],
        "duplicate_completions": [Case(replace(clean_rows(tokenizer, 1)[0], prompt_ids=PROMPT))],
        "near_duplicates": [Case(nearly, settings={"min_tokens": 32, "_also": long})],
    }


def all_cases(tokenizer: Tokenizer) -> dict[str, list[Case]]:
    parts = (structure_cases, sanity_cases, outcome_cases, tool_cases, billing_cases, content_cases)
    return {name: cases for part in parts for name, cases in part(tokenizer).items()}


@pytest.mark.parametrize("name", list(CHECKS))
def test_each_planted_fault_is_found_in_its_row_at_its_position(context: Context, tokenizer: Tokenizer, name: str) -> None:
    for case in all_cases(tokenizer)[name]:
        also = case.settings.pop("_also", clean_rows(tokenizer, 2)[1])
        rows = [clean_rows(tokenizer, 1)[0], also, case.row]
        told = [{**ASKED, "messages": [{"role": "user", "content": f"Question {i} about quite another thing"}]} for i in range(2)]
        given = batch(case.context(context), rows, [*told, case.prompt], [{}, {}, case.response])
        found = complaints(name, given, **case.settings)
        mine = [complaint for complaint in found if complaint.row == 2]
        assert [complaint.position for complaint in mine][:1] == [case.position], (case, found)
        assert mine[0].message


def test_every_check_has_a_planted_fault(tokenizer: Tokenizer) -> None:
    assert set(all_cases(tokenizer)) == set(CHECKS)
    assert set(SEVEN) < set(CHECKS)


def usage_of(row: TokenRow) -> dict[str, Any]:
    usage = {**USAGE, "completion_tokens": len(row.completion_ids), "completion_tokens_details": {"reasoning_tokens": row.completion_ids.index(THINK_CLOSE)}}
    return {**RESPONSE, "response": {"usage": usage}}


@pytest.mark.slow
def test_ten_thousand_clean_rows_raise_no_alarm(context: Context, tokenizer: Tokenizer) -> None:
    expected = replace(context, expect=ExpectSection(reasoning="required", tool_calls="forbidden"), allow=("alpha",), deny=("beta",))
    rows = clean_rows(tokenizer, 10_000)
    for start in range(0, len(rows), 500):
        part = rows[start : start + 500]
        given = batch(expected, part, [{**ASKED, "messages": [{"role": "user", "content": row.id}]} for row in part], [usage_of(row) for row in part])
        found = {name: complaints(name, given) for name in CHECKS}
        assert {name for name, said in found.items() if said} <= {"near_duplicates"}, found  # the rows are one sentence with other numbers
