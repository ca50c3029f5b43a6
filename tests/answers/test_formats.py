"""Each chat format writes an answer as its template does, as the `renderers` package renders the conversation."""

from typing import Any

import pytest

from pipeline.answers.lines import Job
from pipeline.answers.providers.habits import HabitCounts, learn
from pipeline.answers.readings.chat_formats import CallIds
from pipeline.answers.rows import RowMaker
from pipeline.answers.segmented_ids import unpack
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.format_rules import RULES
from pipeline.model.rendering import PromptRenderer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.targets import open_target
from tests.answers.build import body, call, codes

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]
ASKED = [{"role": "user", "content": "Hi"}]
CALLS = [call("f", '{"a": 1}', "functions.f:0"), call("f", '{"a": 2}', "functions.f:1")]


class Target:
    """A target with what tests need of it."""

    def __init__(self, name: str) -> None:
        record, tokenizer = open_target(name)
        self.record: TargetRecord = record
        self.tokenizer: Tokenizer = tokenizer
        self.renderer = PromptRenderer(record, tokenizer)
        self.tools = TOOLS if RULES[record.chat].tools else None
        self.maker = RowMaker(record, tokenizer, send_tools=self.tools is not None)

    def emitted(self, reasoning: str | None, content: str, calls: list[dict[str, Any]]) -> list[int]:
        """Return the model's turn as the template writes it, up to its end token."""
        turn: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            turn["reasoning_content"] = reasoning
        if calls:
            turn["tool_calls"] = calls
        prompt = self.renderer.render(ASKED, self.tools)
        whole = list(self.renderer._renderer.render_ids([*ASKED, turn], tools=self.tools, add_generation_prompt=False))
        assert whole[: len(prompt)] == prompt
        return whole[len(prompt) : len(prompt) + whole[len(prompt) :].index(self.record.role_id("end")) + 1]


@pytest.fixture(scope="module", params=["kimi_k25", "qwen3", "deepseek_v3"])
def target(request: pytest.FixtureRequest) -> Target:
    return Target(request.param)


@pytest.mark.parametrize("calls", [[], CALLS[:1], CALLS], ids=["no call", "one call", "two calls"])
@pytest.mark.parametrize("content", ["Say.", "Two\n\nparagraphs", ""])
def test_an_answer_is_written_as_the_template_writes_it(
    content: str, calls: list[dict[str, Any]], target: Target
) -> None:
    reasoning = "Think." if target.record.roles.think_close else None
    if not (content or calls) or (reasoning and not calls and target.record.chat == "kimi_k25"):
        return  # nothing to say; and Kimi's template drops the reasoning of a finished turn from the history
    true = target.emitted(reasoning, content, calls)
    value = body(reasoning, content or None, calls or None, billed=len(true), finish="tool_calls" if calls else "stop")
    (row,) = target.maker.rows([Job("x", value, ASKED, target.tools)], {})
    assert unpack(row.completion) == true, [target.tokenizer.show(token) for token in unpack(row.completion)]
    assert (row.evidence, row.status) == ("count", "accept"), row
    kinds = [span.kind for span in row.spans]
    assert kinds[-1] == "end"
    assert kinds.count("call_open") == len(calls)
    assert kinds.count("call_id" if target.record.chat == "kimi_k25" else "call_name") == len(calls)


def spans(target: Target, value: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the kind and text of each span in the calls of an answer, without the markers."""
    (row,) = target.maker.rows([Job("x", value, ASKED, target.tools)], {})
    got = unpack(row.completion)
    assert [token for span in row.spans for token in got[span.start : span.end]] == got
    return [
        (s.kind, target.tokenizer.decode_bytes(got[s.start : s.end]).decode())
        for s in row.spans
        if s.kind in ("call_id", "call_name", "call_args")
    ]


@pytest.mark.parametrize("name", ["f", "get_weather", "x.y-z", "wetter_für", "a_"])
def test_the_name_of_a_call_has_a_span_of_its_own_where_it_stands_beside_the_arguments(
    name: str, target: Target
) -> None:
    calls = [call(name, '{"a": "b"}', f"functions.{name}:0")]
    shared = (
        {"qwen3": '",', "deepseek_v3": "\n"}.get(target.record.chat, "") if name.endswith("_") else ""
    )  # one token with the end of the name
    expected = {
        "kimi_k25": [("call_id", f"functions.{name}:0"), ("call_args", '{"a": "b"}')],
        "qwen3": [
            ("call_args", '\n{"name": "'),
            ("call_name", name + shared),
            ("call_args", '", "arguments": {"a": "b"}}\n'.removeprefix(shared)),
        ],
        "deepseek_v3": [
            ("call_id", "function"),
            ("call_name", name + shared),
            ("call_args", '\n```json\n{"a": "b"}\n```'.removeprefix(shared)),
        ],
    }[target.record.chat]
    reasoning = "Think." if target.record.roles.think_close else None
    rebuilt = body(reasoning, "Say.", calls, finish="tool_calls")
    assert spans(target, rebuilt) == expected
    (row,) = target.maker.rows([Job("x", rebuilt, ASKED, target.tools)], {})
    returned = body(reasoning, "Say.", calls, finish="tool_calls")
    returned["choices"][0]["token_ids"] = unpack(row.completion)
    assert spans(target, returned) == expected, "the same from ids that the server returned"


@pytest.mark.parametrize(
    "cut",
    [
        '<tool_call>\n{"name": "get_wea',
        '<tool_call>\n{"na',
        '<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>',
    ],
)
def test_a_call_that_is_cut_or_begins_otherwise_keeps_what_is_there(cut: str) -> None:
    target = Target("qwen3")
    found = spans(target, body("Think.", "Say.\n" + cut, finish="length"))
    assert "".join(text for _, text in found) == cut.removeprefix("<tool_call>").removesuffix("</tool_call>")
    assert [text for kind, text in found if kind == "call_name"] == (["get_wea"] if "get_wea" in cut else [])


def test_qwen_text_that_keeps_its_seams_is_taken_as_it_is() -> None:
    target = Target("qwen3")
    true = target.emitted("Think.", "Say.", [])
    (row,) = target.maker.rows([Job("x", body("\nThink.\n", "\n\nSay.", billed=len(true)), ASKED, target.tools)], {})
    assert unpack(row.completion) == true
    assert "template_seams" not in codes(row)
    (row,) = target.maker.rows([Job("x", body("Think.", "Say.", billed=len(true)), ASKED, target.tools)], {})
    assert unpack(row.completion) == true
    assert "template_seams" in codes(row)


@pytest.mark.parametrize("kept", ["Say.", "Say.\n"])
def test_what_qwen_writes_before_a_call_is_there_once_whether_the_server_keeps_it_or_not(kept: str) -> None:
    target = Target("qwen3")
    true = target.emitted("Think.", "Say.", CALLS[:1])
    (row,) = target.maker.rows(
        [
            Job(
                "x",
                body("\nThink.\n", "\n\n" + kept, CALLS[:1], billed=len(true), finish="tool_calls"),
                ASKED,
                target.tools,
            )
        ],
        {},
    )
    assert (unpack(row.completion), row.evidence) == (true, "count")


def test_raw_hermes_calls_in_content_become_special_tokens() -> None:
    target = Target("qwen3")
    true = target.emitted("Think.", "Say.", CALLS[:1])
    raw = 'Say.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    (row,) = target.maker.rows([Job("x", body("\nThink.\n", "\n\n" + raw, billed=len(true)), ASKED, target.tools)], {})
    assert unpack(row.completion) == true


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("functions.f:0", "native"),
        ("functions.f:12", "native"),
        ("functions.g:0", "foreign"),
        ("3", "foreign"),
        ("f:0", "foreign"),
        ("call_abc", "server"),
        ("chatcmpl-tool-1234", "server"),
        ("", "server"),
        ("9f2c0d7e-41ab-4c55", "server"),
    ],
)
def test_whose_an_id_is(given: str, kind: str) -> None:
    assert CallIds("functions.{name}:{index}").kind(given, "f") == kind


def test_arguments_that_a_server_wrote_anew_do_not_contradict_the_ids(target: Target) -> None:
    emitted = target.emitted(None, "Say.", [call("f", '{"a": "\u00e9", "b":[1]}', "functions.f:0")])
    value = body(
        None,
        "Say.",
        [call("f", '{"a":"\\u00e9","b":[1]}', "call_0123456789abcdef")],
        billed=len(emitted),
        token_ids=emitted,
    )
    row = target.maker.rows([Job("x", value, messages=ASKED, tools=target.tools)], {})[0]
    assert (unpack(row.completion), row.evidence) == (emitted, "ids")
    other = body(
        None, "Say.", [call("f", '{"a":"e","b":[1]}', "call_0123456789abcdef")], billed=len(emitted), token_ids=emitted
    )
    assert target.maker.rows([Job("x", other, messages=ASKED, tools=target.tools)], {})[0].evidence != "ids"


def test_what_servers_drop_behind_the_calls_does_not_contradict_the_ids(target: Target) -> None:
    *made, end = target.emitted(None, "Say.", [call("f", '{"a": 1}', "functions.f:0")])
    emitted = [*made, *target.tokenizer.encode("\nDone."), end]
    value = body(None, "Say.", [call("f", '{"a": 1}', "functions.f:0")], billed=len(emitted), token_ids=emitted)
    row = target.maker.rows([Job("x", value, messages=ASKED, tools=target.tools)], {})[0]
    assert (unpack(row.completion), row.evidence) == (emitted, "ids")


def test_a_server_that_never_shows_qwens_line_breaks_is_not_believed_where_others_cost_the_same() -> None:
    """Qwen3's template has line breaks at the seams; a model may write others there, which cost as many tokens."""
    qwen = Target("qwen3")
    encode, role = qwen.tokenizer.encode, qwen.record.role_id
    opened, close, end = (role(name) for name in ("think_open", "think_close", "end"))
    assert opened is not None
    assert close is not None
    assert end is not None
    rows: list[tuple[list[int], dict[str, Any]]] = []
    for number in range(40):
        first, last, between = ("\n", "\n", "\n\n") if number % 6 else ("\n\n", "\n\n", "\n")
        reasoning, content = f"Count to {number}.", f"It is {number}."
        ids = [opened, *encode(f"{first}{reasoning}{last}"), close, *encode(f"{between}{content}"), end]
        rows.append((ids, body(reasoning, content, billed=len(ids))))
    seen: dict[str | None, HabitCounts] = {}
    jobs = [Job(str(n), value, ASKED) for n, (_, value) in enumerate(rows)]
    for job in jobs:
        qwen.maker.observe(job, seen, 256)
    made = qwen.maker.rows(jobs, learn(seen))
    assert all(
        unpack(row.completion) == ids for row, (ids, _) in zip(made, rows, strict=True) if row.status == "accept"
    )
