"""Prompts hold all of a conversation as the format's own template renders it, or are refused."""

from typing import Any
from unicodedata import normalize

import pytest

from pipeline.core.errors import InputError
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.rendering import PromptRenderer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.targets import open_target

USER = {"role": "user", "content": "Which one?"}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "functions.find:0", "type": "function", "function": {"name": "find", "arguments": "{}"}}
DECOMPOSED = ["cafe\u0301", "\u1112\u1161\u11ab\u1100\u1173\u11af", "q\u0323\u0307", "\u212b \ufb01 \u2126", "A\u030a"]
"""Combining marks, Hangul Jamo, marks out of order, and compatibility characters (NFC keeps the ligature)."""


def renderer_of(name: str) -> tuple[PromptRenderer, Tokenizer, TargetRecord]:
    record, tokenizer = open_target(name)
    return PromptRenderer(record, tokenizer), tokenizer, record


@pytest.mark.parametrize(
    ("target", "messages", "tools", "words"),
    [
        ("qwen3", [{"role": "developer", "content": "Be brief."}, USER], None, "message 0: .*qwen3 drops the role dev"),
        ("deepseek_v3", [USER, {"role": "developer", "content": "x"}, USER], None, "message 1: .*deepseek_v3 drops"),
        ("deepseek_v3", [USER], [TOOL], "deepseek_v3 renders no tools"),
        ("qwen3", [{**USER, "name": "ann"}], None, r"message 0 \(user\).*drops the field 'name'"),
        ("deepseek_v3", [{**USER, "name": "ann"}], None, "drops the field 'name'"),
        ("deepseek_v3", [USER, {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}, USER], None, "second"),
        *[
            (target, [USER, {"role": "assistant", "content": "The"}], None, "message 1: the last message is the assist")
            for target in ("kimi_k25", "qwen3", "deepseek_v3")
        ],
    ],
)
def test_a_part_that_the_template_would_drop_or_rewrite_is_refused(
    target: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        renderer_of(target)[0].render(messages, tools)


def test_kimi_renders_the_role_developer_and_a_name() -> None:
    renderer, tokenizer, _ = renderer_of("kimi_k25")
    ids = renderer.render([{"role": "developer", "content": "Be brief."}, {**USER, "name": "ann"}])
    text = "".join(map(tokenizer.show, ids))
    assert "<|im_system|>developer<|im_middle|>Be brief.<|im_end|><|im_user|>ann<|im_middle|>" in text


def test_deepseek_gathers_every_system_text_before_the_first_turn() -> None:
    renderer, tokenizer, _ = renderer_of("deepseek_v3")
    ids = renderer.render(
        [
            {"role": "user", "content": "Name a colour."},
            {"role": "assistant", "content": "Blue."},
            {"role": "system", "content": "From now on answer in French."},
            {"role": "user", "content": "Another one."},
        ]
    )
    assert len(ids) == 22
    assert "".join(map(tokenizer.show, ids)).startswith(
        "<｜begin▁of▁sentence｜>From now on answer in French.<｜User｜>Name"
    )
    two = renderer.render([{"role": "system", "content": "A."}, USER, {"role": "system", "content": "B."}, USER])
    assert "".join(map(tokenizer.show, two)).startswith("<｜begin▁of▁sentence｜>A.\n\nB.<｜User｜>")


@pytest.mark.parametrize(
    ("target", "on", "off"),
    [
        ("kimi_k25", "<|im_middle|><think>", "<|im_middle|><think></think>"),
        ("qwen3", "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ("deepseek_v3", "<｜Assistant｜>", "<｜Assistant｜>"),
    ],
)
def test_a_prompt_ends_as_the_reasoning_is_switched(target: str, on: str, off: str) -> None:
    renderer, tokenizer, _ = renderer_of(target)

    def shown(thinking: bool | None) -> str:
        return "".join(map(tokenizer.show, renderer.render([USER], thinking=thinking)))

    assert shown(None) == shown(True)
    assert shown(True).endswith(on)
    assert shown(False).endswith(off)


@pytest.mark.parametrize("text", DECOMPOSED)
def test_a_qwen_prompt_is_normalized_and_an_answer_is_not(text: str) -> None:
    renderer, tokenizer, _ = renderer_of("qwen3")
    composed = normalize("NFC", text)
    assert renderer.render([{"role": "user", "content": text}]) == renderer.render(
        [{"role": "user", "content": composed}]
    )
    assert tokenizer.decode_bytes(tokenizer.encode(text)).decode() == text


@pytest.mark.parametrize("target", ["kimi_k25", "deepseek_v3"])
def test_a_tokenizer_without_a_normalizer_reads_a_prompt_as_it_is(target: str) -> None:
    renderer, tokenizer, _ = renderer_of(target)
    ids = renderer.render([{"role": "user", "content": "cafe\u0301"}])
    assert "cafe\u0301".encode() in tokenizer.decode_bytes(ids)


def test_the_decomposed_prompt_of_the_report_has_as_many_ids_as_the_server_billed() -> None:
    content = normalize("NFD", "Où se trouve le café « Été » à Nîmes ?")
    assert len(renderer_of("qwen3")[0].render([{"role": "user", "content": content}])) == 23
