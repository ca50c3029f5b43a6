"""Every check finds its planted fault, in its row at its position, and finds nothing in clean rows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pipeline.formats.schema.tokens import Segment, TokenRow
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.checks.catalog import BY_NAME
from pipeline.stages.audit.config import ExpectSection, TokenPrice
from pipeline.stages.audit.inputs.context import Context
from pipeline.stages.audit.inputs.endpoints import Endpoints
from pipeline.stages.audit.inputs.heldout import make_heldout
from tests.conftest import SHARE
from tests.stages.audit.rows import (
    CALL_ARGS,
    CALL_CLOSE,
    CALL_OPEN,
    END,
    PROMPT,
    THINK_CLOSE,
    THINK_OPEN,
    TOOLS_CLOSE,
    answer,
    assemble,
    batch,
    clean_rows,
    complaints,
)
from tests.stages.audit.test_structure import SEVEN, spoiled

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ASKED = {"messages": [{"role": "user", "content": "hello"}], "tools": [WEATHER]}
USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 2000,
    "cost": 0.0046,
    "completion_tokens_details": {"reasoning_tokens": 4},
}
RESPONSE = {
    "provider": "alpha",
    "model": "kimi",
    "response": {"usage": USAGE, "choices": [{"message": {"content": "Five."}}]},
}
TOOLLESS: list[dict[str, Any]] = [{"messages": []}, {"messages": [], "tools": []}]
TWO_PRICES = [
    TokenPrice(prompt=9, completion=9),
    TokenPrice(prompt=0.6, completion=2.0),
    TokenPrice(prompt=0, completion=0),
]
LOREM = (
    "Seven ships sailed past the old lighthouse before the storm broke over the northern bay and scattered every gull."
)
SHORT = "What is the sum of 17 and 25?"
CHINESE = "用户想知道如何给三个数字排序。我先比较前两个数字，如果第一个更大就交换它们，再比较后两个数字。"
FOREIGN_BUT_FINE = [
    "```python\ndef add(first, second):\n    return first + second\n```",
    "def add(first, second):\n    total = first + second\n    return total",
    "`first_number + second_number` 和 https://example.org/sum/of/two/numbers",
    "Albert Einstein, Isaac Newton, Marie Curie",
    "\\[ \\text{total} = \\text{first} + \\text{second} \\]",
]
"""Answers to a Chinese prompt that hold Latin letters, and no sentence in Latin script."""
PHRASE = " and then we check the second value again before we go on"
HONEST_REPETITION = [
    "| yes | no |\n" * 30,
    "0, 0, 0, 0, 0, 0, 0, 0, 0, 0,\n" * 20,
    '{"name": null, "value": 0},\n' * 40,
    "    total.append(0);\n" * 30,
    "\n".join(f"def get_field_{i}(self):\n    return self.field_{i}\n" for i in range(40)),
    ", ".join(str(i) for i in range(300)),
    "\n".join(f"{i}. Yes" for i in range(60)),
    "# . # . # . # .\n. # . # . # . #\n" * 4,
    "+---+---+---+---+---+---+\n|   |   |   |   |   |   |\n" * 12,
    "true,false,true,true\n" * 40,
    "Row, row, row your boat, gently down the stream. " * 3 + " ".join(f"Verse {i} is other text." for i in range(30)),
]


@dataclass
class Case:
    """A fault: its row, the prompt and the response of the row, and its position."""

    row: TokenRow
    position: int | None = None
    prompt: dict[str, Any] = field(default_factory=lambda: ASKED)
    response: dict[str, Any] = field(default_factory=lambda: RESPONSE)
    settings: dict[str, Any] = field(default_factory=dict)
    context: Callable[[Context], Context] = lambda context: context
    says: str = ""
    """Part of the message that the check writes."""


def phrase_loops(tokenizer: Tokenizer, row: TokenRow, *, limit: bool = False) -> list[Case]:
    """Return answers with a phrase repeated one time too often, or with ``limit`` exactly as often as it may be."""
    beat, phrase, cells = (tokenizer.encode(text) for text in (" ha ho", PHRASE, "| yes | no |\n"))
    other = tokenizer.encode(" ".join(str(i * i) for i in range(900)))
    times = 0 if limit else 1
    lone = tokenizer.encode(LOREM)
    assert len(beat) == 2
    return [
        Case(with_ids(row, [*other[:30], THINK_CLOSE, *other, *phrase * (16 + times), *other[30:50]]), 31 + len(other)),
        Case(with_ids(row, [*phrase * (16 + times), *other, THINK_CLOSE, *other[:9]]), 0),
        Case(with_ids(row, [*other[:9], THINK_CLOSE, *other, *cells * (64 + times), *other[:50]]), 10 + len(other)),
        Case(
            with_ids(row, [*other[:200], THINK_CLOSE, *lone * 4, *other[: 4 * len(lone) - times]]),
            201,
            settings={"min_tokens": 1},
        ),
        Case(
            with_ids(row, [*lone * (2 + times)] if limit else [*lone * 3]),
            0,
            settings={"min_tokens": 3 * len(lone) - 1, "max_covered": 0.0},
        ),
    ]


def with_ids(row: TokenRow, ids: list[int]) -> TokenRow:
    return replace(row, completion_ids=ids, segments=[])


def first(ids: list[int], token: int) -> int:
    return ids.index(token)


def structure_cases(tokenizer: Tokenizer) -> dict[str, list[Case]]:
    cases = {name: [Case(replace(row, segments=[]), position)] for name, (row, position) in spoiled(tokenizer).items()}
    itself = answer(tokenizer, prompt_ids=[1008, 7574])
    cases["no_think_open"].append(Case(with_ids(itself, [1008, THINK_OPEN, *itself.completion_ids]), 1))
    return cases


def sanity_cases(tokenizer: Tokenizer) -> dict[str, list[Case]]:
    row = answer(tokenizer)
    ids, close = row.completion_ids, row.completion_ids.index(THINK_CLOSE)
    text, _ = assemble(tokenizer, [("r", "Hm."), ("c", THINK_CLOSE), ("x", "one\ufffdtwo")])
    bell, _ = assemble(
        tokenizer, [("r", "Hm."), ("c", THINK_CLOSE), ("x", "one"), ("y", "\x07"), ("z", "two"), ("e", END)]
    )
    half = next(token for token in range(1000) if tokenizer.token_bytes(token) == b"\xe2")
    bad_segments = [
        Segment("reasoning", 0, close + 1),
        Segment("content", close + 1, len(ids) - 1),
        Segment("end", len(ids) - 1, len(ids)),
    ]
    return {
        "ids_in_vocabulary": [
            Case(with_ids(row, [*ids[:2], 163840, *ids[2:]]), 2),
            Case(with_ids(row, [*ids[:2], -1, *ids[2:]]), 2),
            Case(replace(row, prompt_ids=[1, 999999]), None),
        ],
        "prompt_start": [
            Case(replace(row, prompt_ids=[163584, *PROMPT]), says="1 times"),
            Case(replace(row, prompt_ids=[163584, 163584]), says="2 times"),
        ],
        "special_ids": [
            Case(with_ids(row, [*ids[:3], 163700, *ids[3:]]), 3),
            Case(with_ids(row, [*ids[:3], 163587, *ids[3:]]), 3),
        ],
        "segments": [
            Case(replace(row, segments=bad_segments), close),
            Case(replace(row, segments=row.segments[:-1]), len(ids) - 1),
            Case(replace(row, segments=[row.segments[0], *row.segments[2:]]), close),
            Case(
                replace(row, segments=[Segment("reasoning", 0, close), Segment("think_close", close, len(ids))]), close
            ),
            Case(
                replace(row, segments=[*row.segments[:2], Segment("content", close + 1, close + 1), *row.segments[2:]]),
                close + 1,
            ),
            Case(
                replace(row, segments=[*row.segments[:2], Segment("content", close + 1, len(ids))]),
                len(ids) - 1,
                says="<|im_end|> (163586) inside",
            ),
            Case(replace(row, segments=[*row.segments, Segment("content", len(ids), len(ids) + 1)]), len(ids) - 1),
        ],
        "valid_utf8": [
            Case(with_ids(row, [*ids[:-1], half, *ids[-1:]]), len(ids) - 1),
            Case(with_ids(row, [*ids[:-1], half]), len(ids) - 1),
            Case(replace(with_ids(row, [*ids[:close], half, THINK_CLOSE, 13]), finish_reason="length"), close),
            Case(replace(with_ids(row, [*ids[:close], half, 13]), finish_reason="length"), close),
        ],
        "replacement_characters": [
            Case(
                with_ids(row, [*text, END]),
                next(i for i, t in enumerate(text) if b"\xef\xbf\xbd"[:1] in tokenizer.token_bytes(t)),
            )
        ],
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
            Case(
                row,
                context=lambda context: replace(
                    context, deny=("alfa",), endpoints=Endpoints(tags={"alpha": ["alfa/fp8"]})
                ),
            ),
            Case(row, response={**RESPONSE, "policy": "quantization nvfp4 is not admitted"}),
        ],
        "model_name": [Case(row, settings={"admit": ["kimi-k2.5"]})],
        "answer_error": [
            Case(row, response={"error": {"kind": "http_502", "message": "bad gateway"}}),
            Case(replace(row, finish_reason="error")),
        ],
        "rejected": [
            Case(
                replace(row, status="reject", reason="no_think_close", completion_ids=[], segments=[]),
                says="no_think_close",
            )
        ],
        "truncated": [
            Case(replace(row, finish_reason="length"), len(row.completion_ids) - 1),
            Case(replace(with_ids(row, [1008]), finish_reason="length"), 0),
        ],
        "content_filter": [Case(replace(row, finish_reason="content_filter"))],
        "refusal": [
            Case(answer(tokenizer, content=" No\u2019pe to that."), settings={"openings": ["NO'PE"]}),
            Case(answer(tokenizer, content="I\u2019m sorry, but I can\u2019t help with that.")),
            Case(row, response={"response": {"choices": [{"message": {"refusal": "No."}}]}}),
        ],
        "empty_content": [Case(answer(tokenizer, content=" \n"))],
        "expect_reasoning": [
            Case(with_ids(row, only_content), context=expect(required)),
            Case(with_ids(row, [THINK_CLOSE, *only_content]), context=expect(required)),
            Case(row, context=expect(forbidden)),
        ],
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
        "tool_schema": [
            Case(calling("get_weather", {"town": "Oslo"}), args),
            Case(calling("get_weather", {"city": 7}), args),
        ],
        "tool_ids": [
            Case(twice, opened + 1),
            Case(with_ids(call, [*ids[: opened + 1], *tokenizer.encode("get_weather"), *ids[args - 1 :]]), opened + 1),
        ],
    }


def billing_cases(tokenizer: Tokenizer) -> dict[str, list[Case]]:
    row = answer(tokenizer)
    long = answer(tokenizer, reasoning=" ".join(f"Step {i} of the plan." for i in range(20)))
    prices = {"alpha": TokenPrice(prompt=0.6, completion=2.0)}
    dear = {**RESPONSE, "response": {"usage": {**USAGE, "cost": 0.0056}}}
    return {
        "count_difference": [
            Case(replace(row, count_delta=65, billed_tokens=390)),
            Case(replace(row, count_delta=-65, billed_tokens=390), says="65 fewer"),
            Case(replace(row, count_delta=None, billed_tokens=None), says="billed 2000"),
        ],
        "prompt_count": [
            Case(replace(row, prompt_evidence="text", prompt_delta=12), says="12 prompt tokens more"),
            Case(replace(row, prompt_evidence="text", prompt_delta=-3), says="3 prompt tokens fewer"),
            Case(replace(row, prompt_evidence="text", prompt_delta=1), says="1 prompt tokens more"),
        ],
        "reasoning_count": [
            Case(long, first(long.completion_ids, THINK_CLOSE)),
            Case(
                with_ids(row, [THINK_CLOSE, 13, END]),
                0,
                response={"response": {"usage": {"completion_tokens_details": {"reasoning_tokens": 30}}}},
            ),
        ],
        "cost": [
            Case(row, response=dear, settings={"prices": prices}),
            Case(
                row,
                response=dear,
                context=lambda context: replace(context, endpoints=Endpoints(prices={"alpha": TWO_PRICES})),
                says="$0.004600",
            ),
        ],
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
    heldout = make_heldout(["hello", LOREM, SHORT], tokenizer, 13)

    def told(*contents: Any) -> dict[str, Any]:
        roles = ("user", "assistant", "system")
        return {"messages": [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]}

    def held_case(prompt: dict[str, Any], says: str, **settings: Any) -> Case:
        return Case(
            row,
            prompt=prompt,
            says=says,
            settings=settings,
            context=lambda context: replace(context, heldout=heldout),
        )

    held = answer(tokenizer, content=LOREM)
    return {
        "token_loop": [
            Case(with_ids(row, loop), first(loop, 22931)),
            *phrase_loops(tokenizer, row),
        ],
        "repeated_ngrams": [
            Case(with_ids(row, [*ids[:3], *phrase, *ids[3:]]), 3 + 20),
            Case(with_ids(row, phrase), 20, settings={"min_tokens": len(phrase)}),
        ],
        "compression": [
            Case(with_ids(row, [*ids[:3], *tokenizer.encode("ab " * 400), *ids[3:]])),
            Case(with_ids(row, tokenizer.encode("ab " * 400)), settings={"min_bytes": 1200}),
        ],
        "language": [
            Case(
                answer(tokenizer, content="Ответ на этот вопрос равен пяти, и это совсем просто."),
                says="0% of the prompt's",
            ),
            Case(answer(tokenizer, content="Ответ"), settings={"min_letters": 5, "min_share": 1.0}),
            Case(answer(tokenizer, reasoning=CHINESE), says="of the reasoning's letters are Han"),
            Case(
                with_ids(answer(tokenizer, finish_reason="length"), tokenizer.encode(CHINESE)),
                says="of the reasoning's",
            ),
            Case(answer(tokenizer, content="この質問の答えは五です。とても簡単な計算だと思います。"), says="Kana"),
            Case(
                answer(
                    tokenizer,
                    content="Ответ на этот вопрос равен пяти.",
                    prompt_ids=tokenizer.encode("What is two plus three?"),
                ),
                prompt={},
            ),
            Case(
                answer(
                    tokenizer,
                    content="The answer to this question is five.",
                    prompt_ids=tokenizer.encode("Сколько будет два плюс три?"),
                ),
                prompt={},
            ),
            Case(
                answer(tokenizer, reasoning="Два плюс три.", content="The answer to this question is five."),
                prompt={"messages": [{"role": "user", "content": "Сколько будет два плюс три?"}]},
                says="of the answer's letters are Latin",
            ),
        ],
        "contamination": [
            Case(row, context=lambda context: replace(context, heldout=heldout)),
            Case(
                held,
                first(held.completion_ids, THINK_CLOSE) + 1,
                prompt={"messages": [{"role": "user", "content": numbers}]},
                context=lambda context: replace(context, heldout=heldout),
            ),
            held_case(told([{"type": "text", "text": "Listen: " + LOREM}]), "holds"),
            held_case(told("Question 7:  HELLO!"), "is one"),
            held_case(told("One, please.", "\uff28ello."), "is one"),
            held_case(told("One, please.", "Two", "As in: what's the sum of 17\nand 25 - and then stop"), "holds"),
            held_case(told("and so " + LOREM[:100] + " fell " * 9), "of a message's 13-grams of words", max_rate=0.1),
            Case(
                answer(tokenizer, prompt_ids=[163587, *tokenizer.encode(LOREM.upper()), END]),
                prompt={},
                says="is one",
                context=lambda context: replace(context, heldout=heldout),
            ),
        ],
        "duplicate_prompts": [Case(replace(clean_rows(tokenizer, 1)[0], completion_ids=ids, segments=[]))],
        "duplicate_completions": [Case(replace(clean_rows(tokenizer, 1)[0], prompt_ids=PROMPT))],
        "near_duplicates": [
            Case(nearly, settings={"min_tokens": 32, "_also": long}),
            Case(replace(long, id="same"), settings={"min_similarity": 1.0, "_also": long}, says="as long"),
        ],
    }


def all_cases(tokenizer: Tokenizer) -> dict[str, list[Case]]:
    parts = (structure_cases, sanity_cases, outcome_cases, tool_cases, billing_cases, content_cases)
    return {name: cases for part in parts for name, cases in part(tokenizer).items()}


def planted_faults_are_found(context: Context, tokenizer: Tokenizer, name: str) -> None:
    for case in all_cases(tokenizer)[name]:
        also = case.settings.pop("_also", clean_rows(tokenizer, 2)[1])
        rows = [clean_rows(tokenizer, 1)[0], also, case.row]
        told = [
            {**ASKED, "messages": [{"role": "user", "content": f"Question {i} about quite another thing"}]}
            for i in range(2)
        ]
        given = batch(case.context(context), rows, [*told, case.prompt], [{}, {}, case.response])
        found = complaints(name, given, **case.settings)
        mine = [complaint for complaint in found if complaint.row == 2]
        assert [complaint.position for complaint in mine][:1] == [case.position], (case, found)
        assert mine[0].message
        assert case.says in mine[0].message, mine


@pytest.mark.parametrize("name", list(BY_NAME))
def test_each_planted_fault_is_found_in_its_row_at_its_position(
    context: Context, tokenizer: Tokenizer, name: str
) -> None:
    planted_faults_are_found(context, tokenizer, name)


def test_every_check_has_a_planted_fault(tokenizer: Tokenizer) -> None:
    assert set(all_cases(tokenizer)) == set(BY_NAME)
    assert set(SEVEN) < set(BY_NAME)


def usage_of(row: TokenRow) -> dict[str, Any]:
    usage = {
        **USAGE,
        "completion_tokens": len(row.completion_ids),
        "completion_tokens_details": {"reasoning_tokens": row.completion_ids.index(THINK_CLOSE)},
    }
    return {**RESPONSE, "response": {"usage": usage}}


def limit_cases(tokenizer: Tokenizer) -> dict[str, list[Case]]:
    """Return rows right at a limit, or to which a check does not apply: no check may complain."""
    row, call = (
        answer(tokenizer),
        answer(tokenizer, calls=[("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})]),
    )
    ids = row.completion_ids
    close = first(ids, THINK_CLOSE)
    gone = replace(row, completion_ids=[], segments=[], status="reject", evidence=None, reason="no_think_close")
    cut = replace(row, finish_reason="length")
    pieces = [
        next(token for token in range(1000) if tokenizer.token_bytes(token) == bytes([byte]))
        for byte in (0xF0, 0x9F, 0x98)
    ]
    verse = tokenizer.encode(LOREM)
    squares = " ".join(str(i * i) for i in range(200))
    required, forbidden = (ExpectSection(reasoning=word, tool_calls=word) for word in ("required", "forbidden"))
    only_content = with_ids(replace(row, prompt_ids=[*PROMPT, THINK_CLOSE]), [*tokenizer.encode("Five."), END])
    prices = {"alpha": TokenPrice(prompt=0.6, completion=2.0)}
    silent: dict[str, list[Case]] = {
        "no_think_open": [Case(with_ids(answer(tokenizer, prompt_ids=[1008, 7574]), [THINK_OPEN, *ids]))],
        "reasoning_not_empty": [
            Case(with_ids(row, [THINK_CLOSE, 13, END]), context=lambda context: replace(context, expect=forbidden))
        ],
        "think_close_position": [Case(with_ids(row, [*ids[: close + 1], 13, END]))],
        "round_trip": [
            Case(replace(spoiled(tokenizer)["round_trip"][0], segments=[]), settings={"max_rate": 3 / 8}),
            Case(gone),
            Case(with_ids(row, [*verse, *tokenizer.encode(" un"), *verse * 2, END]), settings={"max_rate": 1.0}),
        ],
        "ids_in_vocabulary": [Case(with_ids(row, [0, *ids, 163839])), Case(with_ids(row, []))],
        "prompt_start": [Case(replace(row, prompt_ids=[])), Case(replace(row, prompt_ids=[PROMPT[0], 163584]))],
        "special_ids": [Case(with_ids(row, [0, 163583, *ids])), Case(with_ids(row, [163840, -1]))],
        "segments": [Case(with_ids(row, ids)), Case(call), Case(gone)],
        "valid_utf8": [Case(with_ids(cut, [*ids[:-1], *pieces[:size]])) for size in (1, 2, 3)],
        "replacement_characters": [Case(answer(tokenizer, content="one\ufffdtwo"), settings={"max_count": 1})],
        "control_characters": [
            Case(answer(tokenizer, content="\ta\r\n\u00e9\u00a0b")),
            Case(answer(tokenizer, content="\x07"), settings={"max_count": 1}),
        ],
        "provider_policy": [
            Case(row, context=lambda context: replace(context, allow=("ALPHA/int4",), deny=("beta",))),
            Case(replace(row, provider=None), response={}, context=lambda context: replace(context, deny=("alpha",))),
            Case(
                row,
                context=lambda context: replace(
                    context, allow=("alfa",), endpoints=Endpoints(tags={"alpha": ["alfa/fp8"]})
                ),
            ),
            Case(
                row,
                context=lambda context: replace(
                    context, deny=("alpha/turbo",), endpoints=Endpoints(tags={"alpha": ["alpha/turbo", "alpha/fp8"]})
                ),
            ),
        ],
        "model_name": [Case(row, settings={"admit": ["kimi"]}), Case(row, response={}, settings={"admit": ["other"]})],
        "truncated": [Case(row)],
        "refusal": [Case(answer(tokenizer, content="Well, I'm sorry, but I can explain."))],
        "empty_content": [
            Case(gone),
            Case(answer(tokenizer, content="", calls=[("get_weather", {"city": "Oslo"})])),
            Case(with_ids(cut, ids[:close])),
        ],
        "expect_reasoning": [
            Case(only_content, context=lambda context: replace(context, expect=forbidden)),
            Case(with_ids(cut, ids[:close]), context=lambda context: replace(context, expect=required)),
            Case(
                with_ids(row, [1008, THINK_CLOSE, 13, END]), context=lambda context: replace(context, expect=required)
            ),
            Case(gone, context=lambda context: replace(context, expect=required)),
            Case(only_content),
        ],
        "expect_tool_calls": [
            Case(row, context=lambda context: replace(context, expect=forbidden)),
            Case(call, context=lambda context: replace(context, expect=required)),
            Case(cut, context=lambda context: replace(context, expect=required)),
            Case(gone, context=lambda context: replace(context, expect=required)),
        ],
        "tool_markup": [
            Case(call),
            *(
                Case(replace(with_ids(call, call.completion_ids[:size]), finish_reason="length"))
                for size in range(1, len(call.completion_ids))
            ),
        ],
        "tool_json": [Case(answer(tokenizer, calls=[("get_weather", " ")]))],
        "tool_name": [Case(answer(tokenizer, calls=[("get_time", {})]), prompt=asked) for asked in TOOLLESS]
        + [
            Case(
                with_ids(
                    call,
                    [
                        *call.completion_ids[: first(call.completion_ids, CALL_OPEN) + 1],
                        *tokenizer.encode("x"),
                        CALL_ARGS,
                        CALL_CLOSE,
                    ],
                )
            )
        ],
        "tool_schema": [
            Case(answer(tokenizer, calls=[("get_time", {"x": 1})])),
            Case(answer(tokenizer, calls=[("get_weather", "[1]")])),
            Case(call),
        ],
        "tool_ids": [Case(call), Case(replace(answer(tokenizer, calls=[("get_weather", {})]), prompt_ids=PROMPT))],
        "count_difference": [
            Case(replace(row, count_delta=16, billed_tokens=100)),
            Case(replace(row, count_delta=20, billed_tokens=1000)),
            Case(replace(row, count_delta=None, billed_tokens=None), response={}),
            Case(replace(row, count_delta=None, billed_tokens=5000, status="reject")),
        ],
        "prompt_count": [
            Case(replace(row, prompt_evidence="count", prompt_delta=1)),
            Case(replace(row, prompt_evidence="text", prompt_delta=0)),
            Case(replace(row, prompt_evidence="text", prompt_delta=None)),
        ],
        "reasoning_count": [
            Case(row, response={"response": {"usage": {"completion_tokens_details": {"reasoning_tokens": count}}}})
            for count in (0, close + 16)
        ],
        "cost": [
            Case(row, settings={"prices": prices}),
            Case(
                row,
                response={
                    **RESPONSE,
                    "response": {"usage": {**USAGE, "cost": 9, "prompt_tokens_details": {"cached_tokens": 5}}},
                },
                settings={"prices": prices},
            ),
            Case(row, response={**RESPONSE, "response": {"usage": {"cost": 9}}}, settings={"prices": prices}),
            Case(
                row,
                response={**RESPONSE, "response": {"usage": {**USAGE, "cost": 0.00465}}},
                settings={"prices": prices},
            ),
            Case(row, response={**RESPONSE, "response": {"usage": {**USAGE, "cost": 9}}}),
            Case(row, context=lambda context: replace(context, endpoints=Endpoints(prices={"alpha": TWO_PRICES}))),
            Case(
                replace(row, provider="beta"),
                response={**RESPONSE, "response": {"usage": {**USAGE, "cost": 9}}},
                settings={"prices": prices},
            ),
        ],
        "token_loop": [
            Case(with_ids(row, [*ids[:2], *[22931] * 64, *ids[2:]])),
            Case(with_ids(row, [])),
            *(Case(answer(tokenizer, content=content)) for content in HONEST_REPETITION),
            *phrase_loops(tokenizer, row, limit=True),
        ],
        "repeated_ngrams": [
            Case(with_ids(row, verse[:9] * 7)),
            Case(with_ids(row, verse[:20] * 6), settings={"max_rate": 1 - 20 / 105}),
            Case(with_ids(row, [*tokenizer.encode(squares)[:100], *verse[:20] * 4])),
            Case(with_ids(row, [7] * 20), settings={"n": 30, "min_tokens": 1}),
        ],
        "compression": [Case(with_ids(row, tokenizer.encode("ab " * 170))), Case(answer(tokenizer, content=squares))],
        "language": [
            Case(answer(tokenizer, content="Ответ пять")),
            Case(
                answer(
                    tokenizer,
                    reasoning="Надо сложить два и три, получится пять.",
                    content="Ответ на этот вопрос равен пяти.",
                    prompt_ids=tokenizer.encode("Сколько будет два плюс три?"),
                ),
                prompt={},
            ),
            Case(answer(tokenizer, content="Ответ на этот вопрос равен пяти.", prompt_ids=[]), prompt={}),
            Case(
                answer(tokenizer, content="Ответ на этот вопрос равен пяти.", prompt_ids=tokenizer.encode("2 + 3 = ?")),
                prompt={},
            ),
            Case(
                answer(tokenizer, content="Ответ на этот вопрос равен пяти."),
                prompt={"messages": [{"role": "user", "content": "abаб"}]},
                settings={"max_prompt_share": 0.5},
            ),
            *(
                Case(
                    answer(tokenizer, reasoning="很简单。", content=content),
                    prompt={
                        "messages": [{"role": "user", "content": "请写一个把两个数字相加的函数，并说出三位物理学家。"}]
                    },
                )
                for content in FOREIGN_BUT_FINE
            ),
            Case(
                answer(tokenizer, content="Ответ на этот вопрос равен пяти."),
                prompt={
                    "messages": [
                        {"role": "system", "content": "Отвечай кратко."},
                        {"role": "user", "content": "What is two plus three?"},
                    ]
                },
            ),
            Case(
                answer(
                    tokenizer, content="Line 3 of it reads as follows: \u201cОтвет на этот вопрос равен пяти.\u201d"
                ),
                prompt={
                    "messages": [
                        {"role": "user", "content": "Say line 3. Ответ на этот вопрос равен пяти." + " More text." * 99}
                    ]
                },
                settings={"max_prompt_share": 0.5},
            ),
        ],
        "contamination": [
            Case(
                row,
                prompt={"messages": [{"role": "user", "content": LOREM}]},
                settings={"max_rate": 1.0},
                context=lambda context: replace(
                    context, heldout=replace(make_heldout([LOREM], tokenizer, 13), questions=frozenset(), inside={})
                ),
            ),
            Case(
                with_ids(row, verse),
                settings={"max_rate": 1.0},
                context=lambda context: replace(context, heldout=make_heldout([LOREM], tokenizer, 13)),
            ),
            Case(
                row,
                prompt={"messages": [{"role": "user", "content": "The sum of 17 and 26 is asked; hello it is not."}]},
                context=lambda context: replace(context, heldout=make_heldout(["hello", SHORT], tokenizer, 13)),
            ),
            Case(row),
        ],
        "duplicate_prompts": [Case(replace(row, prompt_ids=[]))],
        "duplicate_completions": [Case(with_ids(row, clean_rows(tokenizer, 2)[1].completion_ids[:15]))],
        "near_duplicates": [
            Case(with_ids(row, [])),
            Case(answer(tokenizer, content=LOREM), settings={"_also": answer(tokenizer, content=squares)}),
        ],
    }
    return silent


def limits_are_kept(context: Context, tokenizer: Tokenizer, name: str) -> None:
    for case in limit_cases(tokenizer).get(name, []):
        settings = {key: value for key, value in case.settings.items() if key != "_also"}
        rows = [clean_rows(tokenizer, 1)[0], case.settings.get("_also", clean_rows(tokenizer, 2)[1]), case.row]
        given = batch(case.context(context), rows, [{"messages": []}] * 2 + [case.prompt], [{}, {}, case.response])
        assert [complaint for complaint in complaints(name, given, **settings) if complaint.row == 2] == [], case


@pytest.mark.parametrize("name", list(BY_NAME))
def test_a_row_right_at_a_limit_or_outside_a_check_is_no_finding(
    context: Context, tokenizer: Tokenizer, name: str
) -> None:
    limits_are_kept(context, tokenizer, name)


def clean_rows_are_silent(context: Context, tokenizer: Tokenizer, count: int, names: list[str]) -> None:
    expected = replace(
        context, expect=ExpectSection(reasoning="required", tool_calls="forbidden"), allow=("alpha",), deny=("beta",)
    )
    rows = clean_rows(tokenizer, count)
    for start in range(0, len(rows), 500):
        part = rows[start : start + 500]
        given = batch(
            expected,
            part,
            [{**ASKED, "messages": [{"role": "user", "content": row.id}]} for row in part],
            [usage_of(row) for row in part],
        )
        found = {
            name: complaints(name, given) for name in names if name != "near_duplicates"
        }  # the rows are one sentence with other numbers
        assert found == {name: [] for name in found}


@pytest.mark.slow
def test_ten_thousand_clean_rows_raise_no_alarm(context: Context, tokenizer: Tokenizer) -> None:
    clean_rows_are_silent(context, tokenizer, 10_000 // SHARE, list(BY_NAME))
