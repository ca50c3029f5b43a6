"""Bills that are met and prove nothing: other texts cost as much, or the provider counts something else."""

import json
from typing import Any

import pytest

from pipeline.answers.lines import Job
from pipeline.answers.providers.habits import HabitCounts, learn
from pipeline.answers.rows import PackedRow, RowMaker
from pipeline.answers.segmented_ids import unpack
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.answers.build import ARGS, CALL, CALL_END, CLOSE, END, TOOLS, TOOLS_END, body, call, codes, rows_of

WORDS = ["sun", "rain", "snow", "wind", "fog", "hail", "frost", "storm", "cloud", "ice"]


def plain(
    tokenizer: Tokenizer,
    reasoning: str,
    content: str,
    *,
    off: int = 0,
    shown: tuple[str, str] | None = None,
    finish: str = "stop",
) -> dict[str, Any]:
    """Return a body with the bill of the true texts plus `off`; `shown` holds the texts as the server changed them."""
    true = len(tokenizer.encode(reasoning)) + 1 + len(tokenizer.encode(content)) + (finish == "stop")
    return body(*(shown or (reasoning, content)), billed=true + off, finish=finish)


def called(
    tokenizer: Tokenizer, arguments: str, *, shown: str | None = None, name: str = "functions.find:0", **more: Any
) -> dict[str, Any]:
    """Return a body with one call, billed as emitted; `shown` holds its arguments as the server changed them."""
    true = [
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
    return body(
        "Look.",
        None,
        [call("find", arguments if shown is None else shown, name)],
        billed=len(true) + more.pop("off", 0),
        **more,
    )


def verdict(row: PackedRow) -> tuple[str | None, str, str | None]:
    return row.evidence, row.status, row.reason


def asked(maker: RowMaker, calls_before: int, value: Any) -> PackedRow:
    """Return the row of a body whose conversation holds some calls already."""
    earlier = [
        {"id": f"functions.find:{n}", "type": "function", "function": {"name": "find", "arguments": "{}"}}
        for n in range(calls_before)
    ]
    results = [{"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in earlier]
    history = [{"role": "assistant", "content": "", "tool_calls": earlier}, *results] if earlier else []
    return maker.rows([Job("x", value, messages=[{"role": "user", "content": "Hi"}, *history])], {})[0]


@pytest.mark.parametrize(
    ("before", "given", "sure"), [(0, 0, True), (2, 2, True), (2, 0, False), (3, 1, False), (0, 1, False)]
)
def test_calls_numbered_from_0_in_the_middle_of_a_conversation_may_be_the_servers_own(
    before: int, given: int, sure: bool, maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """The model counts through the conversation, some servers through the reply; `:0` and `:2` cost the same."""
    row = asked(maker, before, called(tokenizer, "{}", name=f"functions.find:{given}"))
    assert verdict(row) == (("count", "accept", None) if sure else ("text", "flag", "ambiguous_count"))


def test_a_number_of_more_digits_is_told_apart_by_the_bill(maker: RowMaker, tokenizer: Tokenizer) -> None:
    text = f"functions.find:{10**6}"
    assert len(tokenizer.encode(text)) > len(tokenizer.encode("functions.find:2"))
    assert verdict(asked(maker, 2, called(tokenizer, "{}", name=text))) == ("count", "accept", None)


@pytest.mark.parametrize("reasoning", ["Thinking of", "A longer thought that goes on"])
def test_a_cut_answer_one_token_above_its_text_need_not_end_in_a_marker(
    reasoning: str, maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """White space before the text, or another cut of it, cost as much as the close of the reasoning that nobody saw."""
    row = rows_of(maker, body(reasoning, None, billed=len(tokenizer.encode(reasoning)) + 1, finish="length"))[0]
    assert (row.evidence, row.status) == ("text", "flag")
    exact = rows_of(maker, body(reasoning, None, billed=len(tokenizer.encode(reasoning)), finish="length"))[0]
    assert (exact.evidence, exact.reason) == ("count", "truncated_in_reasoning")


def test_an_unbilled_end_and_a_stripped_newline_do_not_make_an_exact_count(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """One token less for the end, one more for what was stripped: the bill of the true answer is that of the text."""
    bodies = [
        plain(tokenizer, word, "\n\nSay." if n % 10 < 7 else "Say.", off=-1, shown=(word, "Say."))
        for n, word in enumerate(WORDS)
    ]
    rows = rows_of(maker, *bodies)
    assert {(row.evidence, row.status) for row in rows} == {("text", "flag")}
    assert {row.reason for row in rows[:7]} == {"end_token_unclear"}


def test_answers_cut_but_called_stopped_do_not_put_the_others_in_doubt(maker: RowMaker, tokenizer: Tokenizer) -> None:
    """A provider that shows white space at every seam strips none."""
    bodies = [plain(tokenizer, f"\n{word}\n", "\nSay.\n", off=-(n % 10 > 6)) for n, word in enumerate(WORDS)]
    assert [row.status for row in rows_of(maker, *bodies)] == ["accept"] * 7 + ["flag"] * 3


def test_a_provider_whose_bills_are_often_above_its_text_strips_what_it_never_shows(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """No other provider's rows are needed: `It is rain` costs one more with a newline, `It is rain.` does not."""
    assert len(tokenizer.encode("It is rain.\n")) == len(tokenizer.encode("It is rain."))
    texts = [f"It is {word}" if n % 2 else f"It is {word}." for n, word in enumerate(WORDS)]
    rows = rows_of(maker, *[plain(tokenizer, text + "\n", "Say.", shown=(text, "Say.")) for text in texts])
    assert {verdict(row) for row in rows[::2]} == {("text", "flag", "edge_whitespace_suspected")}
    assert {row.status for row in rows} == {"flag"}
    kept = rows_of(maker, *[plain(tokenizer, text, "Say.", off=n == 0) for n, text in enumerate(texts)])
    assert [row.status for row in kept] == ["flag"] + ["accept"] * 9


def test_a_provider_that_bills_less_than_its_text_is_not_believed_where_the_bill_fits_by_chance(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    bodies = [
        plain(tokenizer, f"It is {word}.", "Say so.", off=0 if n in (3, 6) else -2 - n % 3)
        for n, word in enumerate(WORDS)
    ]
    rows = rows_of(maker, *bodies)
    assert {row.status for row in rows} == {"flag"}
    assert {verdict(rows[n]) for n in (3, 6)} == {("text", "flag", "count_unreliable")}


def test_markers_in_the_text_that_fit_in_no_reading_say_nothing_of_the_bills(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """Read as text they cost far more than was billed."""
    odd = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    bodies = [body("Look.", f"{word} {odd}", billed=15) for word in WORDS]
    *rows, sure = rows_of(maker, *bodies, plain(tokenizer, "It rains.", "Say so."))
    assert {row.status for row in rows} == {"flag"}
    assert verdict(sure) == ("count", "accept", None)


SORTED = [json.dumps(dict.fromkeys(sorted((word, WORDS[n - 1], WORDS[n - 2])), n)) for n, word in enumerate(WORDS)]


def test_keys_that_always_come_in_order_were_put_there_by_the_server(maker: RowMaker, tokenizer: Tokenizer) -> None:
    """Maps of Go and of Rust's serde_json are written so; another order costs the same."""
    rows = rows_of(maker, *[called(tokenizer, text) for text in SORTED], called(tokenizer, '{"one": 1}'))
    assert {verdict(row) for row in rows[:-1]} == {("text", "flag", "arguments_sorted_by_server")}
    assert verdict(rows[-1]) == ("count", "accept", None)


@pytest.mark.parametrize(
    "more", [SORTED[:2] * 5, [*SORTED, '{"b": 1, "a": 2}']], ids=["one schema", "one in another order"]
)
def test_a_schema_in_order_or_one_call_out_of_it_is_no_habit(
    more: list[str], maker: RowMaker, tokenizer: Tokenizer
) -> None:
    assert {row.status for row in rows_of(maker, *[called(tokenizer, text) for text in more])} == {"accept"}


def test_a_tool_whose_parameters_are_listed_in_order_says_nothing_of_the_server(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """Go lists the parameters of its own tools so."""
    bodies = [called(tokenizer, text) for text in SORTED]
    name = bodies[0]["choices"][0]["message"]["tool_calls"][0]["function"]["name"]
    for listed, expected in ((sorted(WORDS), False), (sorted(WORDS, reverse=True), True)):
        tools = [None, {"function": {"name": name, "parameters": {"properties": {key: {} for key in listed}}}}]
        seen: dict[str | None, HabitCounts] = {}
        for number, value in enumerate(bodies):
            maker.observe(Job(f"r{number}", value, tools=tools), seen, 256)
        assert learn(seen)["P"].sorts_keys == expected


def test_arguments_written_anew_are_not_believed_where_the_bill_fits_by_chance(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """Ten blanks of indentation were lost; one call has none to lose, but nobody knows."""
    texts = [json.dumps({word: {"n": n, "of": [1, 2, 3]}}, indent=3) for n, word in enumerate(WORDS)]
    bodies = [called(tokenizer, text, shown=json.dumps(json.loads(text))) for text in texts]
    fits = called(tokenizer, '{"n": 1}')
    assert verdict(rows_of(maker, fits)[0]) == ("count", "accept", None)
    assert verdict(rows_of(maker, *bodies, fits)[-1]) == ("text", "flag", "arguments_rewritten_by_server")


def test_bills_that_another_reading_explains_are_no_sign_of_arguments_written_anew(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """The blanks that another spacing would leave out say nothing of rows whose bill is met."""
    texts = [json.dumps({word: n, "a": 1, "b": 2, "c": 3}) for n, word in enumerate(WORDS)]
    seen: dict[str | None, HabitCounts] = {}
    user = {"role": "user", "content": "Hi"}
    earlier = [
        {"role": "assistant", "content": "", "tool_calls": [call("find", "{}", "functions.find:0")]},
        {"role": "tool", "tool_call_id": "x", "content": "ok"},
    ]
    for n, text in enumerate(texts):  # `:0` where `:1` was meant: two readings, one bill
        maker.observe(Job(str(n), called(tokenizer, text), messages=[user, *earlier]), seen, 256)
    assert not learn(seen)["P"].rewrites


def test_calls_of_a_provider_that_never_bills_the_end_are_not_taken_for_unclosed_reasoning(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """One short is the end token that is not billed, not ten times a close that the model forgot."""
    rows = rows_of(maker, *[called(tokenizer, "{}", off=-1) for _ in WORDS])
    assert {verdict(row) for row in rows} == {("count", "accept", None)}
    assert all("terminator_not_billed" in codes(row) and CLOSE in unpack(row.completion) for row in rows)


def listed(tokenizer: Tokenizer, ids: list[int]) -> list[dict[str, Any]]:
    """Logprob entries of these tokens, with their bytes."""
    return [{"token": "?", "bytes": list(tokenizer.spelled(token))} for token in ids]


@pytest.mark.parametrize("space", ["", "\n", " \n"])
def test_logprobs_of_the_content_alone_are_not_the_whole_answer_when_the_reasoning_is_empty(
    space: str, maker: RowMaker, tokenizer: Tokenizer
) -> None:
    true = [*tokenizer.encode(space), CLOSE, *tokenizer.encode("It rains."), END]
    content = true[true.index(CLOSE) + 1 :]
    for billed in (len(true), None):
        row = rows_of(maker, body(space, "It rains.", billed=billed, logprobs={"content": listed(tokenizer, content)}))[
            0
        ]
        assert row.evidence != "logprobs"
        assert row.status == "flag" or unpack(row.completion) == true
    whole = rows_of(maker, body(space, "It rains.", billed=len(true), logprobs={"content": listed(tokenizer, true)}))[0]
    assert (unpack(whole.completion), whole.evidence, whole.status) == (true, "logprobs", "accept")


def test_logprobs_that_miss_white_space_which_the_text_misses_too_are_not_the_whole_answer(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    true = [*tokenizer.encode("\n"), *tokenizer.encode("Look:"), CLOSE, *tokenizer.encode("It rains."), END]
    row = rows_of(
        maker, body("Look:", "It rains.", billed=len(true), logprobs={"content": listed(tokenizer, true[1:])})
    )[0]
    assert (row.evidence, row.status) == ("text", "flag")


def test_returned_ids_without_the_end_token_get_it_when_the_bill_says_so(maker: RowMaker, tokenizer: Tokenizer) -> None:
    true = [*tokenizer.encode("Look."), CLOSE, *tokenizer.encode("It rains."), END]
    row = rows_of(maker, body("Look.", "It rains.", billed=len(true), token_ids=true[:-1]))[0]
    assert (unpack(row.completion), row.evidence, row.status) == (true, "ids", "accept")
    assert "end_token_from_finish_reason" in codes(row)


def test_choices_that_share_a_bill_are_doubted_as_if_billed_alone(maker: RowMaker, tokenizer: Tokenizer) -> None:
    """Two close tags in one text: either may be the one, however the sum comes out."""
    text = "The tag </think> closes it.</think> So I said."
    bodies = [plain(tokenizer, "Look.", "It rains."), body(None, text, billed=0)]
    alone = len(tokenizer.encode("The tag ")) + 1 + len(tokenizer.encode(" closes it.</think> So I said.")) + 1
    both = {**bodies[0], "choices": [{**value["choices"][0], "index": n} for n, value in enumerate(bodies)]}
    both["usage"] = {"completion_tokens": bodies[0]["usage"]["completion_tokens"] + alone}
    first, second = rows_of(maker, both)
    assert verdict(first) == ("count", "accept", None)
    assert (second.evidence, second.status) == ("text", "flag")


def test_of_choices_that_share_a_bill_without_ends_a_cut_one_has_none_to_leave_out(
    maker: RowMaker, tokenizer: Tokenizer
) -> None:
    singles = [plain(tokenizer, f"It is {word}.", "Say so.", off=-1) for word in WORDS]
    pair = [plain(tokenizer, "Look.", "It rains.", off=-1), plain(tokenizer, "Look.", "It ra", finish="length")]
    both = {**pair[0], "choices": [{**value["choices"][0], "index": n} for n, value in enumerate(pair)]}
    both["usage"] = {"completion_tokens": sum(value["usage"]["completion_tokens"] for value in pair)}
    first, second = rows_of(maker, *singles, both)[-2:]
    assert (first.evidence, first.count_delta, second.evidence, second.count_delta) == ("count", -1, "count", 0)


def test_white_space_beside_a_close_tag_in_the_content_was_not_stripped(maker: RowMaker, tokenizer: Tokenizer) -> None:
    """The one token above the text is another cut of it: this provider shows blanks before the tag."""
    others = [
        plain(tokenizer, f"It is {word}\n", "\nSay.\n", shown=("", f"It is {word}\n</think>\nSay.\n")) for word in WORDS
    ]
    text = (
        "call me"  # of the four usual kinds of white space before the tag, `\\n\\n` and the others cost one token each
    )
    row = rows_of(maker, *others, plain(tokenizer, text, "Say.", off=1, shown=("", f"{text}</think>Say.")))[-1]
    assert verdict(row) == ("text", "flag", "count_mismatch, edge_whitespace_suspected")
