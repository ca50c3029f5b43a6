"""Answers from public reports, and labelled refusals: the checks find what their names say."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.audit_refusals import measure
from pipeline.core.files.jsonl import read_jsonl
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.config import AuditSection
from pipeline.stages.audit.inputs.context import Context
from tests.conftest import DATA
from tests.stages.audit.rows import answer, batch, complaints


def found_in(context: Context, tokenizer: Tokenizer, path: Path, check: str) -> dict[str, str]:
    """Return the message of a check's first finding about each line of a file of response lines."""
    lines: list[dict[str, Any]] = [line for _number, line in read_jsonl(path)]
    messages = [line["response"]["choices"][0]["message"] for line in lines]
    rows = [
        answer(tokenizer, line["id"], reasoning=message["reasoning"], content=message["content"])
        for line, message in zip(lines, messages, strict=True)
    ]
    given = batch(context, rows, lines, [{"response": line["response"]} for line in lines])
    return {rows[complaint.row].id: complaint.message for complaint in complaints(check, given)}


def test_nine_reported_refusals_are_found_and_the_recipe_is_not(context: Context, tokenizer: Tokenizer) -> None:
    found = found_in(context, tokenizer, DATA / "cases" / "refusals.jsonl", "refusal")
    assert list(found) == [f"r{number}" for number in range(9)]


def test_a_loop_of_any_period_is_left_out_of_training(context: Context, tokenizer: Tokenizer) -> None:
    found = found_in(context, tokenizer, DATA / "cases" / "loops.jsonl", "token_loop")
    assert list(found) == ["word", "two", "phrase46", "phrase8", "para3"]
    assert AuditSection().token_loop.severity == "error"


def test_chinese_reasoning_under_an_english_prompt_is_found(context: Context, tokenizer: Tokenizer) -> None:
    found = found_in(context, tokenizer, DATA / "cases" / "language.jsonl", "language")
    assert list(found) == ["reasoning_zh", "content_zh"]
    assert "of the reasoning's letters are Han" in found["reasoning_zh"]
    assert "of the answer's letters are Han" in found["content_zh"]


def test_labelled_refusals_are_told_from_near_misses() -> None:
    figures = measure()
    assert figures["refusals"] >= 100
    assert figures["others"] >= 100
    assert figures["precision"] >= 0.98, figures["wrong"]
    assert figures["recall"] >= 0.97, figures["wrong"]


@pytest.mark.parametrize(
    "phrase",
    [
        "Wait, let me check 3 + 4 = 7 again. ",
        "我再检查一遍这个答案是否正确。",
        "\u201cNever again,\u201d she said to him in the garden. ",
        "**Note:** check this again. ",
    ],
)
def test_loops_of_other_kinds_are_found_in_the_reasoning(context: Context, tokenizer: Tokenizer, phrase: str) -> None:
    assert complaints("token_loop", batch(context, [answer(tokenizer, reasoning=phrase * 12)]))


@pytest.mark.parametrize(
    "text", ["I'm unable to help." + " x" * 9, "Sure. I'm unable to help.", "", "No, sorry, well, " * 40]
)
def test_only_the_beginning_of_an_answer_is_read(context: Context, tokenizer: Tokenizer, text: str) -> None:
    found = complaints("refusal", batch(context, [answer(tokenizer, content=text)]))
    assert bool(found) == text.startswith("I'm unable")
