"""Habits that are learned from a provider's rows, and habits that too few rows do not prove."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.answers.providers.habits import HabitCounts, bills_end
from pipeline.answers.readings.tool_calls import respaced
from pipeline.answers.rows import RowMaker
from pipeline.answers.segmented_ids import unpack
from pipeline.formats.completion.choices import Answer
from pipeline.formats.completion.structured_calls import Call
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.answers.build import ARGS, CALL, CALL_END, CLOSE, END, TOOLS, TOOLS_END, body, call, codes, rows_of

REASONINGS = [f"Thought {number}." for number in range(40)]


def answer(
    tokenizer: Tokenizer,
    reasoning: str,
    content: str,
    *,
    provider: str = "P",
    off: int = 0,
    finish: str = "stop",
    shown: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """Return a body with the bill of the true texts plus `off`; `shown` holds the texts as the server changed them."""
    true = len(tokenizer.encode(reasoning)) + 1 + len(tokenizer.encode(content)) + (finish == "stop")
    return {**body(*(shown or (reasoning, content)), billed=true + off, finish=finish), "provider": provider}


def test_an_end_token_that_is_never_billed_is_a_habit_and_one_more_is_a_mismatch(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    bodies = [answer(tokenizer, text, "Say.", off=-1) for text in REASONINGS[:5]]
    bodies += [answer(tokenizer, "Odd.", "Say."), answer(tokenizer, "Cut.", "Say", finish="length")]
    rows = rows_of(maker, *bodies)
    assert all(
        row.status == "accept" and "terminator_not_billed" in codes(row) and row.count_delta == -1 for row in rows[:5]
    )
    assert rows[5].status == "flag"
    assert "count_mismatch" in codes(rows[5])
    assert (rows[6].evidence, rows[6].count_delta) == ("count", 0)


def test_one_short_row_among_exact_ones_is_no_habit(maker: RowMaker, tokenizer: Tokenizer) -> None:
    rows = rows_of(
        maker, *[answer(tokenizer, text, "Say.") for text in REASONINGS[:5]], answer(tokenizer, "Odd.", "Say.", off=-1)
    )
    assert [row.status for row in rows] == ["accept"] * 5 + ["flag"]


def test_a_provider_that_is_short_on_cut_answers_too_does_not_merely_leave_out_the_end() -> None:
    seen = HabitCounts()
    seen.stop_deltas.update({-1: 10})
    assert not bills_end(seen)
    seen.length_deltas.update({-1: 4})
    assert bills_end(seen)


def test_habits_are_learned_for_each_provider_alone(maker: RowMaker, tokenizer: Tokenizer) -> None:
    bodies = [
        answer(tokenizer, text, "Say.", provider=name, off=off)
        for text in REASONINGS[:4]
        for name, off in (("A", 0), ("B", -1))
    ]
    assert {row.status for row in rows_of(maker, *bodies)} == {"accept"}


def test_a_provider_that_strips_is_not_believed_where_white_space_costs_nothing(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """`.` and `.\\n` are one token each, so the count cannot see what was stripped.

    Other providers' rows show that the model writes it.
    """
    assert len(tokenizer.encode("0.")) == len(tokenizer.encode("0.\n"))
    clean = [
        answer(tokenizer, text + ("\n" if number % 4 == 0 else ""), "Say.", provider="Clean")
        for number, text in enumerate(REASONINGS)
    ]
    stripped = [
        answer(tokenizer, text + ("\n" if number % 4 == 0 else ""), "Say.", provider="Strips", shown=(text, "Say."))
        for number, text in enumerate(REASONINGS)
    ]
    rows = rows_of(maker, *clean, *stripped)
    assert {row.status for row in rows[: len(clean)]} == {"accept"}
    assert {(row.status, row.evidence, row.reason) for row in rows[len(clean) :]} == {
        ("flag", "text", "edge_whitespace_suspected")
    }


def test_a_few_rows_without_white_space_prove_nothing(maker: RowMaker, tokenizer: Tokenizer) -> None:
    clean = [
        answer(tokenizer, text + ("\n" if number == 0 else ""), "Say.", provider="Clean")
        for number, text in enumerate(REASONINGS)
    ]
    rows = rows_of(maker, *clean, answer(tokenizer, "Once.", "Say.", provider="Rare"))
    assert rows[-1].status == "accept"


def test_what_rows_with_known_ids_lost_breaks_the_tie_for_the_same_provider(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """A newline and a blank line cost one token each.

    Rows with ids show that this provider always cuts a blank line.
    """
    bodies = []
    for text in REASONINGS[:25]:
        ids = [*tokenizer.encode(text), CLOSE, *tokenizer.encode("\n\nSay."), END]
        value = {**body(text, "Say.", billed=len(ids), token_ids=ids), "provider": "P"}
        bodies.append(value)
    lost = answer(tokenizer, "No ids here:", "\n\nSay.", shown=("No ids here:", "Say."))
    row = rows_of(maker, *bodies, lost)[-1]
    assert unpack(row.completion) == [*tokenizer.encode("No ids here:"), CLOSE, *tokenizer.encode("\n\nSay."), END]
    assert (row.evidence, row.status) == ("count", "accept")
    assert any(note.startswith("seam content_start='\\n\\n', as this provider") for note in row.notes)
    assert rows_of(maker, lost)[0].status == "flag"


def test_a_provider_that_shows_white_space_at_a_seam_is_believed_there(maker: RowMaker, tokenizer: Tokenizer) -> None:
    bodies = [
        answer(tokenizer, text + ("\n" if n % 4 == 0 else ""), "Say.", provider=name)
        for name in ("A", "B")
        for n, text in enumerate(REASONINGS)
    ]
    assert {row.status for row in rows_of(maker, *bodies)} == {"accept"}


def test_white_space_kept_before_the_close_says_nothing_of_the_beginning(maker: RowMaker, tokenizer: Tokenizer) -> None:
    """Old SGLang trims the whole text before it splits the reasoning off.

    ` Thought` and `Thought` are one token each.
    """
    true = [(" " if n % 4 == 0 else "") + text + ("\n" if n % 4 == 1 else "") for n, text in enumerate(REASONINGS)]
    clean = [answer(tokenizer, text, "Say.", provider="Clean") for text in true]
    trims = [answer(tokenizer, text, "Say.", provider="Trims", shown=(text.lstrip(), "Say.")) for text in true]
    rows = rows_of(maker, *clean, *trims)
    assert {row.status for row in rows[: len(clean)]} == {"accept"}
    assert {(row.status, row.reason) for row in rows[len(clean) :]} == {("flag", "edge_whitespace_suspected")}


def compact(text: str) -> str:
    return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))


def same(text: str) -> str:
    return text


def calling(
    tokenizer: Tokenizer, arguments: str, server: Callable[[str], str], *, ids: bool = False
) -> tuple[list[int], dict[str, Any]]:
    """Return the emitted ids, and the body in which the server spaces the arguments of the call anew."""
    name = "functions.find:0"
    made = [
        *tokenizer.encode("Look."),
        CLOSE,
        TOOLS,
        CALL,
        *tokenizer.encode(name),
        ARGS,
        *tokenizer.encode(arguments),
        CALL_END,
        TOOLS_END,
        END,
    ]
    given: dict[str, Any] = {"token_ids": made} if ids else {}
    return made, body("Look.", None, [call("find", server(arguments), name)], billed=len(made), **given)


SPACED = [json.dumps({"query": f"word {number}", "limit": number}) for number in range(8)]
TIE = '{"limit": null}'
"""As many tokens as without its space."""


@pytest.mark.parametrize("ids", [False, True])
def test_a_server_that_spaces_arguments_anew_is_found_out(maker: RowMaker, tokenizer: Tokenizer, ids: bool) -> None:
    assert len(tokenizer.encode(TIE)) == len(tokenizer.encode(compact(TIE)))
    learned = [calling(tokenizer, text, compact, ids=ids)[1] for text in SPACED]
    emitted, one = calling(tokenizer, '{"query": "another", "limit": 3}', compact)
    *_, row, tied = rows_of(maker, *learned, one, calling(tokenizer, TIE, compact)[1])
    assert (unpack(row.completion), row.evidence, row.status) == (emitted, "count", "accept")
    assert "respaced_arguments" in codes(row)
    assert (tied.evidence, tied.status) == ("text", "flag")
    assert any(note.startswith("equal_count") and "respaced_arguments" in note for note in tied.notes)


@pytest.mark.parametrize("ids", [False, True])
def test_a_server_that_keeps_arguments_is_believed_where_spaces_cost_nothing(
    maker: RowMaker, tokenizer: Tokenizer, ids: bool
) -> None:
    bodies = [calling(tokenizer, text, same, ids=ids)[1] for text in (*SPACED, *map(compact, SPACED[:3]))]
    for text in (TIE, compact(TIE)):
        emitted, tied = calling(tokenizer, text, same)
        row = rows_of(maker, *bodies, tied)[-1]
        assert (unpack(row.completion), row.evidence, row.status) == (emitted, "count", "accept")


def test_a_few_rows_that_would_fit_otherwise_are_no_habit(maker: RowMaker, tokenizer: Tokenizer) -> None:
    rows = rows_of(maker, *[calling(tokenizer, text, compact)[1] for text in SPACED[:3]])
    assert {(row.evidence, row.status) for row in rows} == {("text", "flag")}


@pytest.mark.parametrize(
    "text",
    ["{}", '{"a":  1}', '{"a" : 1}', '{"a":"\\u00e9"}', "not json", "", '{"n": 1.0, "e": 1e1}', '{"a": 1, "a": 2}'],
)
def test_arguments_in_no_usual_spacing_have_no_other(text: str) -> None:
    assert respaced(Answer(0, calls=(Call("functions.f:0", "f", text),))) is None


def test_the_other_spacing_keeps_the_values_and_their_order() -> None:
    spaced = '{"b": [1, {"c": "x, y: z"}], "a": "ü"}'
    there = respaced(Answer(0, calls=(Call("functions.f:0", "f", spaced),)))
    assert there is not None
    assert there.calls[0].arguments == '{"b":[1,{"c":"x, y: z"}],"a":"ü"}'
    assert respaced(there) == Answer(0, calls=(Call("functions.f:0", "f", spaced),))
