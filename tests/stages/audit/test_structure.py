"""The seven checks of form against an independent implementation, and their exceptions one by one."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.formats.schema.tokens import TokenRow
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.config import ExpectSection
from pipeline.stages.audit.inputs.context import Context
from tests.stages.audit.rows import END, PROMPT, THINK_CLOSE, THINK_OPEN, answer, assemble, batch, complaints

SEVEN = (
    "ends_with_end_token",
    "one_think_close",
    "think_close_position",
    "one_end_token",
    "no_think_open",
    "round_trip",
    "reasoning_not_empty",
)


def independent(ids: list[int], tokenizer: Tokenizer) -> dict[str, bool]:
    """Return which of the seven an answer violates, by code that shares nothing with the checks."""
    close = ids.index(THINK_CLOSE) if THINK_CLOSE in ids else None
    end = ids.index(END) if END in ids else None
    before = tokenizer.decode_bytes(ids[:close]).decode("utf-8", "replace") if close is not None else "-"
    return {
        "ends_with_end_token": ids[-1:] != [END],
        "one_think_close": ids.count(THINK_CLOSE) != 1,
        "think_close_position": close is not None and (close >= len(ids) - 2 or (end is not None and end < close)),
        "one_end_token": ids.count(END) != 1,
        "no_think_open": THINK_OPEN in ids,
        "round_trip": independent_changes(ids, tokenizer) > 0.05 * len(ids),
        "reasoning_not_empty": close is not None and not before.strip(),
    }


def independent_changes(ids: list[int], tokenizer: Tokenizer) -> int:
    """Count the tokens that decoding and encoding again does not return; special ids divide the text."""
    lost, text = 0, []
    for token in [*ids, END]:
        if token not in tokenizer.special_texts:
            text.append(token)
            continue
        again = tokenizer.encode(tokenizer.decode_bytes(text).decode("utf-8", "replace"))
        lost += len(_spans(text, tokenizer) - _spans(again, tokenizer))
        text = []
    return lost


def _spans(ids: list[int], tokenizer: Tokenizer) -> set[tuple[int, int]]:
    return {(len(tokenizer.decode_bytes(ids[:i])), token) for i, token in enumerate(ids)}


TOKENS = st.one_of(
    st.sampled_from([END, THINK_CLOSE, THINK_OPEN, 163595, 163599, 198, 220]),
    st.sampled_from([22931, 11, 2695, 0, 1008, 7574, 387, 5512, 13, 16901, 673, 382]),
    st.integers(256, 20000),
)


@given(answers=st.lists(st.lists(TOKENS, max_size=40), min_size=1, max_size=6))
@settings(deadline=None, max_examples=150)
def test_the_seven_checks_equal_an_independent_implementation(
    context: Context, tokenizer: Tokenizer, answers: list[list[int]]
) -> None:
    compare_with_independent(context, tokenizer, answers)


def compare_with_independent(context: Context, tokenizer: Tokenizer, answers: list[list[int]]) -> None:
    valid = [ids for ids in answers if _is_utf8(ids, tokenizer)]
    rows = batch(
        context,
        [
            TokenRow(f"r{i}", PROMPT, ids, "ids", 0, len(ids), "stop", None, [], [], "accept")
            for i, ids in enumerate(valid)
        ],
    )
    found = {name: {complaint.row for complaint in complaints(name, rows)} for name in SEVEN}
    assert found == {
        name: {row for row, ids in enumerate(valid) if independent(ids, tokenizer)[name]} for name in SEVEN
    }


def _is_utf8(ids: list[int], tokenizer: Tokenizer) -> bool:
    try:
        tokenizer.decode_bytes(ids).decode()
    except UnicodeDecodeError:
        return False
    return True


def spoiled(tokenizer: Tokenizer) -> dict[str, tuple[TokenRow, int | None]]:
    """Return, for each of the seven, a row that violates it and the position of the fault."""
    row = answer(tokenizer)
    ids = row.completion_ids
    close = ids.index(THINK_CLOSE)
    split = [token for piece in ("unbel", "iev", "ably") for token in tokenizer.encode(piece)]
    return {
        "ends_with_end_token": (replace(row, completion_ids=ids[:-1]), len(ids) - 2),
        "one_think_close": (replace(row, completion_ids=[*ids[:-1], THINK_CLOSE, 1008, 7574, END]), len(ids) - 1),
        "think_close_position": (replace(row, completion_ids=[*ids[: close + 1], END]), close),
        "one_end_token": (replace(row, completion_ids=[*ids, 1008, END]), len(ids) - 1),
        "no_think_open": (replace(row, completion_ids=[THINK_OPEN, *ids]), 0),
        "round_trip": (replace(row, completion_ids=[*split, *ids[close:]]), 1),
        "reasoning_not_empty": (replace(row, completion_ids=[198, *ids[close:]]), 1),
    }


@pytest.mark.parametrize("name", SEVEN)
def test_a_planted_fault_is_found_in_its_row_at_its_position(context: Context, tokenizer: Tokenizer, name: str) -> None:
    row, position = spoiled(tokenizer)[name]
    rows = batch(context, [answer(tokenizer, "before"), row, answer(tokenizer, "after")])
    found = complaints(name, rows)
    assert [(complaint.row, complaint.position) for complaint in found] == [(1, position)]


def test_a_clean_row_has_no_complaint(context: Context, tokenizer: Tokenizer) -> None:
    rows = batch(context, [answer(tokenizer), answer(tokenizer, calls=[("get_weather", {"city": "Oslo"})], content="")])
    assert [complaint for name in SEVEN for complaint in complaints(name, rows)] == []


def test_an_answer_cut_by_the_token_limit_misses_nothing_that_it_had_not_come_to(
    context: Context, tokenizer: Tokenizer
) -> None:
    whole = answer(tokenizer).completion_ids
    close = whole.index(THINK_CLOSE)
    prefixes = [whole[:length] for length in (1, close, close + 1, close + 2, len(whole) - 1)]
    rows = batch(context, [replace(answer(tokenizer), completion_ids=ids, finish_reason="length") for ids in prefixes])
    assert [complaint for name in SEVEN for complaint in complaints(name, rows)] == []
    stopped = batch(context, [replace(answer(tokenizer), completion_ids=whole[:close])])
    assert {name for name in SEVEN if complaints(name, stopped)} == {
        "ends_with_end_token",
        "one_think_close",
        "one_end_token",
    }


def test_a_cut_answer_is_still_checked_for_what_stands_in_it(context: Context, tokenizer: Tokenizer) -> None:
    ids, _ = assemble(tokenizer, [("", "a"), ("", END), ("", "b"), ("", THINK_CLOSE), ("", THINK_CLOSE), ("", END)])
    rows = batch(context, [replace(answer(tokenizer), completion_ids=ids, finish_reason="length")])
    assert {name for name in SEVEN if complaints(name, rows)} == {
        "one_think_close",
        "think_close_position",
        "one_end_token",
    }


EXPECTATIONS: list[tuple[Any, list[int], bool, set[str]]] = [
    ("forbidden", [*PROMPT, THINK_CLOSE], True, set()),
    ("forbidden", [*PROMPT, THINK_CLOSE], False, {"one_think_close"}),
    ("optional", [*PROMPT, THINK_CLOSE], True, set()),
    ("optional", PROMPT, True, {"one_think_close"}),
    ("optional", [], True, {"one_think_close"}),
    ("required", [*PROMPT, THINK_CLOSE], True, {"one_think_close"}),
]


def whether_a_reasoning_must_be_closed(
    context: Context, tokenizer: Tokenizer, expect: Any, prompt: list[int], content_only: bool, names: set[str]
) -> None:
    row = replace(answer(tokenizer), prompt_ids=prompt)
    if content_only:
        row = replace(row, completion_ids=row.completion_ids[row.completion_ids.index(THINK_CLOSE) + 1 :])
    rows = batch(replace(context, expect=ExpectSection(reasoning=expect)), [row])
    assert {name for name in SEVEN if complaints(name, rows)} == names


@pytest.mark.parametrize(("expect", "prompt", "content_only", "names"), EXPECTATIONS)
def test_whether_a_reasoning_must_be_closed_follows_the_dataset_and_the_prompt(
    context: Context, tokenizer: Tokenizer, expect: Any, prompt: list[int], content_only: bool, names: set[str]
) -> None:
    whether_a_reasoning_must_be_closed(context, tokenizer, expect, prompt, content_only, names)


def test_a_rejected_row_is_not_checked(context: Context, tokenizer: Tokenizer) -> None:
    rows = batch(
        context,
        [replace(answer(tokenizer), completion_ids=[], status="reject", evidence=None, reason="no_think_close")],
    )
    assert [complaint for name in SEVEN for complaint in complaints(name, rows)] == []


def exceptions_hold(context: Context, tokenizer: Tokenizer) -> None:
    """Run the tests of this module on fixed random rows, for a check that was changed on purpose."""
    choice = random.Random(0)
    pool = [END, THINK_CLOSE, THINK_OPEN, 163595, 198, 220, 22931, 11, 2695, 1008, 7574, 445, 48966, 139878]
    compare_with_independent(context, tokenizer, [choice.choices(pool, k=choice.randrange(9)) for _ in range(300)])
    test_a_clean_row_has_no_complaint(context, tokenizer)
    test_an_answer_cut_by_the_token_limit_misses_nothing_that_it_had_not_come_to(context, tokenizer)
    test_a_cut_answer_is_still_checked_for_what_stands_in_it(context, tokenizer)
    test_a_rejected_row_is_not_checked(context, tokenizer)
    for expect, prompt, content_only, names in EXPECTATIONS:
        whether_a_reasoning_must_be_closed(context, tokenizer, expect, prompt, content_only, names)
