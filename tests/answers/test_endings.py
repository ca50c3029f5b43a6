"""A server's "stop" proves no end token where a stop string, a stop token or a limit may have ended the answer."""

import json
from typing import Any

import pytest

from pipeline.answers.lines import Job, file_job
from pipeline.answers.providers.habits import HabitCounts, learn
from pipeline.answers.readings.endings import Bounds
from pipeline.answers.rows import PackedRow, RowMaker
from pipeline.answers.segmented_ids import unpack
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.answers.build import CALL, CLOSE, END, TOOLS, body, call, codes, rows_of

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def ids_of(tokenizer: Tokenizer, reasoning: str, content: str) -> list[int]:
    return [*tokenizer.encode(reasoning), CLOSE, *tokenizer.encode(content)]


def limited(maker: RowMaker, limit: int | None, *bodies: Any) -> list[PackedRow]:
    """Rows of bodies whose requests had a limit."""
    jobs = [Job(f"r{number}", value, bounds=Bounds(limit)) for number, value in enumerate(bodies)]
    seen: dict[str | None, HabitCounts] = {}
    for job in jobs:
        maker.observe(job, seen, 256)
    return maker.rows(jobs, learn(seen))


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        ({"stop_reason": "\n\n"}, "stopped_by_string"),
        ({"matched_stop": "###"}, "stopped_by_string"),
        ({"finish": "stop_sequence"}, "stopped_by_string"),
        ({"stop_reason": 163585}, "stopped_by_other_token"),
        ({"matched_stop": 13}, "stopped_by_other_token"),
    ],
)
def test_an_answer_that_something_else_ended_gets_no_end_token(
    maker: RowMaker, tokenizer: Tokenizer, choice: dict[str, Any], code: str
) -> None:
    ids = ids_of(tokenizer, "Three plus four is seven.", "Answer: 7")
    (row,) = rows_of(maker, body("Three plus four is seven.", "Answer: 7", billed=len(ids) + 1, **choice))
    assert (row.status, row.evidence, unpack(row.completion)) == ("flag", "text", ids)
    assert code in codes(row)


@pytest.mark.parametrize("choice", [{"stop_reason": END}, {"matched_stop": END}, {"matched_stop": "<|im_end|>"}])
def test_the_end_token_may_be_named_as_what_ended_the_answer(
    maker: RowMaker, tokenizer: Tokenizer, choice: dict[str, Any]
) -> None:
    ids = [*ids_of(tokenizer, "Three plus four.", "Seven"), END]
    (row,) = rows_of(maker, body("Three plus four.", "Seven", billed=len(ids), **choice))
    assert (row.status, row.evidence, unpack(row.completion)) == ("accept", "count", ids)


def test_returned_ids_keep_the_stop_string_that_the_text_lost(maker: RowMaker, tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, "Three plus four.", "Seven ###")
    (row,) = rows_of(maker, body("Three plus four.", "Seven", billed=len(ids), stop_reason=" ###", token_ids=ids))
    assert (row.status, row.evidence, unpack(row.completion)) == ("flag", "ids", ids)


def test_a_bill_at_the_limit_of_the_request_proves_no_end_token(maker: RowMaker, tokenizer: Tokenizer) -> None:
    """Four answers say that the end is not billed; the fifth is as long as the request allows."""
    short = [body(f"Count {word}.", "Yes", billed=len(ids_of(tokenizer, f"Count {word}.", "Yes"))) for word in WORDS]
    ids = ids_of(tokenizer, "Let me think about it.", "The answer is forty and")
    rows = limited(maker, len(ids), *short, body("Let me think about it.", "The answer is forty and", billed=len(ids)))
    assert {row.status for row in rows[:-1]} == {"accept"}
    assert (rows[-1].status, rows[-1].evidence, unpack(rows[-1].completion)) == ("flag", "text", ids)
    assert "length_limit_reached" in codes(rows[-1])


def test_an_end_token_among_returned_ids_is_proof_at_the_limit_too(maker: RowMaker, tokenizer: Tokenizer) -> None:
    ids = [*ids_of(tokenizer, "Three plus four.", "Seven"), END]
    (row,) = limited(maker, len(ids), body("Three plus four.", "Seven", billed=len(ids), token_ids=ids))
    assert (row.status, row.evidence) == ("accept", "ids")
    (row,) = limited(maker, len(ids), body("Three plus four.", "Seven", billed=len(ids), token_ids=ids[:-1]))
    assert row.status == "flag"
    assert END not in unpack(row.completion)


def test_lengths_that_pile_up_are_a_limit_where_the_server_always_says_stop(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    bodies = []
    for word in WORDS:
        ids = ids_of(tokenizer, f"Count {word}.", text := f"So it is {word} and " * 6)[:24]
        cut = tokenizer.decode_bytes(ids[ids.index(CLOSE) + 1 :]).decode()
        bodies.append(body(f"Count {word}.", cut, billed=24))
        assert text.startswith(cut)
    whole = [*ids_of(tokenizer, "Short.", "Yes"), END]
    rows = rows_of(maker, *bodies, body("Short.", "Yes", billed=len(whole)))
    assert all(END not in unpack(row.completion) and row.status == "flag" for row in rows[:-1])
    assert (rows[-1].status, unpack(rows[-1].completion)) == ("accept", whole)


@pytest.mark.parametrize(
    "place",
    [
        {"max_tokens": 9},
        {"max_completion_tokens": "9"},
        {"request": {"max_tokens": 9}},
        {"request": {"body": {"max_completion_tokens": 9, "max_tokens": 20}}},
    ],
)
def test_a_line_says_what_its_request_allowed(place: dict[str, Any]) -> None:
    line = {"id": "x", "response": body("R", "C"), **place}
    assert file_job(1, json.dumps(line).encode()).bounds == Bounds(9)


def test_ids_that_are_fewer_than_billed_are_never_the_whole_answer(maker: RowMaker, tokenizer: Tokenizer) -> None:
    content = "It is 4 degrees.\nBring a coat."
    whole = [*tokenizer.encode("Oslo it is."), CLOSE, *tokenizer.encode("\n\n"), *tokenizer.encode(content), END]
    complete = body("Oslo it is.", content, billed=len(whole), token_ids=whole)
    (row,) = rows_of(maker, complete)
    assert (row.status, row.evidence) == ("accept", "ids")
    for gap in range(len(whole)):
        given = [*whole[:gap], *whole[gap + 1 :]]
        row = rows_of(maker, complete, body("Oslo it is.", content, billed=len(whole), token_ids=given))[1]
        assert row.status == "flag" or unpack(row.completion) == whole, gap


def test_a_token_missing_inside_ids_without_an_end_is_not_taken_for_the_end(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """This server bills no end token and returns none; one row lacks a token of white space."""
    rows = []
    for word in WORDS:
        ids = ids_of(tokenizer, f"Count {word}.", f"\n\nIt is {word}.")
        rows.append(body(f"Count {word}.", f"It is {word}.", billed=len(ids), token_ids=ids))
    broken = ids_of(tokenizer, "Count all.", "It is all.")
    rows.append(body("Count all.", "It is all.", billed=len(broken) + 1, token_ids=broken))
    assert rows_of(maker, *rows)[-1].status == "flag"


@pytest.mark.parametrize("seen", ["nothing", "opening"])
def test_a_cut_call_is_labelled_by_the_bill_and_the_servers_word(
    maker: RowMaker, tokenizer: Tokenizer, seen: str
) -> None:
    reasoning = "The user asks for the weather."
    ids = [*tokenizer.encode(reasoning), CLOSE, TOOLS, CALL]
    shown = [call("get_weather", '{"city": "Os', "functions.get_weather:0")] if seen == "opening" else None
    billed = len(ids) + (10 if shown else 0)
    (row,) = limited(maker, billed, body(reasoning, None, shown, finish="tool_calls", billed=billed))
    assert row.status == "flag"
    assert "truncated_in_tool_call" in codes(row)
    assert END not in unpack(row.completion)


def test_a_request_with_stop_strings_makes_each_stop_doubtful_unless_the_server_names_what_ended_it(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    ids = ids_of(tokenizer, "Three plus four.", "Seven")
    for choice, status in (({}, "flag"), ({"stop_reason": None}, "accept"), ({"matched_stop": END}, "accept")):
        line = {"id": "x", "response": body("Three plus four.", "Seven", billed=len(ids) + 1, **choice)}
        job = file_job(1, json.dumps({**line, "request": {"stop": ["###"]}}).encode())
        (row,) = maker.rows([job], {})
        assert row.status == status, choice
        assert ("stop_string_possible" in codes(row)) == (status == "flag")


@pytest.mark.parametrize("content", [None, "Let me look it up"])
def test_calls_that_the_server_names_and_does_not_show_were_cut(
    maker: RowMaker, tokenizer: Tokenizer, content: str | None
) -> None:
    """The opening marker costs as much as the end token would."""
    others = []
    for word in WORDS:
        whole = [*ids_of(tokenizer, f"Count {word}.", f"It is {word}."), END]
        others.append(body(f"Count {word}.", f"It is {word}.", billed=len(whole)))
    cut = [*ids_of(tokenizer, "I need the weather.", content or ""), TOOLS]
    row = rows_of(maker, *others, body("I need the weather.", content, finish="tool_calls", billed=len(cut)))[-1]
    assert (row.status, row.evidence) == ("flag", "text")
    assert codes(row) >= {"tool_calls_not_shown", "truncated_in_tool_call"}
    assert unpack(row.completion) == cut
