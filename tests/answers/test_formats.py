"""Each chat format writes an answer as its template does: judged against renderers' own rendering of the finished conversation."""

from typing import Any

import pytest

from pipeline.answers.assemble import unpack
from pipeline.answers.formats import CallIds
from pipeline.answers.lines import Job
from pipeline.answers.rows import RowMaker
from pipeline.rendering import PromptRenderer
from pipeline.schema.target import TargetRecord
from pipeline.targets import open_target
from pipeline.tokens import Tokenizer
from tests.answers.build import body, call, codes

TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]
ASKED = [{"role": "user", "content": "Hi"}]
CALLS = [call("f", '{"a": 1}', "functions.f:0"), call("f", '{"a": 2}', "functions.f:1")]


class Target:
    """A target with what tests need of it."""

    def __init__(self, name: str) -> None:
        record, tokenizer = open_target(name)
        self.record: TargetRecord = record
        self.tokenizer: Tokenizer = tokenizer
        self.renderer = PromptRenderer(record, tokenizer)
        self.maker = RowMaker(record, tokenizer, send_tools=True)

    def emitted(self, reasoning: str | None, content: str, calls: list[dict[str, Any]]) -> list[int]:
        """What the template makes of the model's turn, up to its end token."""
        turn: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            turn["reasoning_content"] = reasoning
        if calls:
            turn["tool_calls"] = calls
        prompt = self.renderer.render(ASKED, TOOLS)
        whole = list(self.renderer._renderer.render_ids([*ASKED, turn], tools=TOOLS, add_generation_prompt=False))
        assert whole[: len(prompt)] == prompt
        return whole[len(prompt) : len(prompt) + whole[len(prompt) :].index(self.record.role_id("end")) + 1]


@pytest.fixture(scope="module", params=["kimi_k25", "qwen3", "deepseek_v3"])
def target(request: pytest.FixtureRequest) -> Target:
    return Target(request.param)


@pytest.mark.parametrize("calls", [[], CALLS[:1], CALLS], ids=["no call", "one call", "two calls"])
@pytest.mark.parametrize("content", ["Say.", "Two\n\nparagraphs", ""])
def test_an_answer_is_written_as_the_template_writes_it(content: str, calls: list[dict[str, Any]], target: Target) -> None:
    reasoning = "Think." if target.record.roles.think_close else None
    if not (content or calls) or (reasoning and not calls and target.record.chat == "kimi_k25"):
        return  # nothing to say; and Kimi's template drops the reasoning of a finished turn from the history
    true = target.emitted(reasoning, content, calls)
    value = body(reasoning, content or None, calls or None, billed=len(true), finish="tool_calls" if calls else "stop")
    (row,) = target.maker.rows([Job("x", value, ASKED, TOOLS)], {})
    assert unpack(row.completion) == true, [target.tokenizer.show(token) for token in unpack(row.completion)]
    assert (row.evidence, row.status) == ("count", "accept"), row
    kinds = [span.kind for span in row.spans]
    assert kinds[-1] == "end"
    assert kinds.count("call_open") == kinds.count("call_args") == len(calls)


def test_qwen_text_that_keeps_its_seams_is_taken_as_it_is() -> None:
    target = Target("qwen3")
    true = target.emitted("Think.", "Say.", [])
    (row,) = target.maker.rows([Job("x", body("\nThink.\n", "\n\nSay.", billed=len(true)), ASKED, TOOLS)], {})
    assert unpack(row.completion) == true
    assert "template_seams" not in codes(row)
    (row,) = target.maker.rows([Job("x", body("Think.", "Say.", billed=len(true)), ASKED, TOOLS)], {})
    assert unpack(row.completion) == true
    assert "template_seams" in codes(row)


def test_raw_hermes_calls_in_content_become_special_tokens() -> None:
    target = Target("qwen3")
    true = target.emitted("Think.", "Say.", CALLS[:1])
    raw = 'Say.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    (row,) = target.maker.rows([Job("x", body("\nThink.\n", "\n\n" + raw, billed=len(true)), ASKED, TOOLS)], {})
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
