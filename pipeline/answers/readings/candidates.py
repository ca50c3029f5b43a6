"""Readings of an answer: the sequences that the model may have emitted, the likeliest first.

The format decides which alternatives exist. A reading says where each special token is. The billed count decides
between readings; nothing here looks at it.
"""

import itertools
import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from pipeline.answers.readings.chat_formats import Thinking
from pipeline.answers.readings.endings import CALL_WORDS
from pipeline.answers.readings.markers import Markers, Piece
from pipeline.answers.readings.seams import templated
from pipeline.answers.readings.tool_calls import FormatContext, call_options
from pipeline.formats.completion.choices import Answer

MAX_READINGS = 48
"""Most alternatives tried; an answer with more is too ambiguous for a count to decide."""


MAX_TAGS = 4
"""Most spelled-out tags tried as the one that closes the reasoning."""

INSERTED = "insert_tool_section"
"""Repair: the markers of a section, which the server dropped, are put back."""

TRUNCATED = {"call": "truncated_in_tool_call", "content": "truncated_in_content", "reasoning": "truncated_in_reasoning"}
"""Maps the place where an answer was cut to the code of the flag."""


CUT_AT_MARKER = "cut_at_marker"
"""Flag: the last token of a cut answer would be a marker that no text shows. A bill one above the text has likelier
causes."""


RAN_ON = "ran_on_past_end"
"""Reject: the model emitted the end token and went on, so that the rest of the answer is not its turn."""


@dataclass(frozen=True, slots=True)
class View:
    """A reading of the text fields: which part is reasoning, whether it was closed, and what follows."""

    reasoning: tuple[Piece, ...]
    closed: bool
    body: tuple[Piece, ...]
    raw_calls: int = 0
    """Number of calls that `body` or `reasoning` holds already."""
    cut_in: str | None = None
    """`reasoning`, `content` or `call` when the answer was cut there."""
    repairs: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()
    needs_bill: bool = False
    """As in `Reading`."""


class Reading(NamedTuple):
    """One sequence of pieces that the model may have emitted."""

    pieces: tuple[Piece, ...]
    repairs: tuple[str, ...] = ()
    """Codes of the clean-ups that it takes."""
    reasons: tuple[str, ...] = ()
    """Codes of the flags of the row, if the model emitted this."""
    rejects: tuple[str, ...] = ()
    """Codes of why no honest ids exist, if nothing else is known."""
    needs_bill: bool = False
    """True when the reading is honest all the same, if the bill is exactly its own."""


class PromptState(NamedTuple):
    """The state of the conversation after the prompt."""

    thinking: Thinking
    calls_before: int | None = None
    """Tool calls of the conversation so far; None when they are not known."""


Marked = Callable[[str], bool]
"""Tells whether a text could spell out a special token."""


def readings(
    answer: Answer, context: FormatContext, prompt_state: PromptState, marked: Marked, kept: Container[str] = ()
) -> Iterator[Reading]:
    """Yield all readings, the likeliest first, each once.

    They come with the template's white space at all seams too, except at the seams in `kept`, where the provider does
    not strip it.
    """
    if (only := _plain_reading(answer, context.markers, prompt_state, marked)) is not None:
        yield only
        return
    yielded = set()
    usual = {seam: space for seam, space in context.format.seams.items() if seam not in kept}
    combined = (
        (v, calls)
        for v in views(answer, context, prompt_state.thinking, marked)
        for calls in call_options(answer, v.raw_calls, context, prompt_state.calls_before)
    )
    for view, (call_pieces, repairs, reasons) in itertools.islice(combined, MAX_READINGS):
        for pieces, more in _tails(answer, view, call_pieces, context, prompt_state.thinking):
            own = view.reasons if TRUNCATED["call"] not in more else _not_cut(view.reasons)
            flags = tuple(dict.fromkeys((*own, *reasons, *more)))
            for whole, seams in ((pieces, ()), (templated(pieces, usual), ("template_seams",))):
                if whole not in yielded:
                    yielded.add(whole)
                    yield Reading(whole, (*view.repairs, *repairs, *seams), flags, view.rejects, view.needs_bill)


def _not_cut(reasons: tuple[str, ...]) -> tuple[str, ...]:
    """Return the codes without those that say where the answer was cut."""
    return tuple(code for code in reasons if code not in TRUNCATED.values())


def _plain_reading(answer: Answer, markers: Markers, prompt_state: PromptState, marked: Marked) -> Reading | None:
    """Return the only reading of an answer that leaves no choice, as most do; None for others.

    It is the reasoning, its close, the content, the end.
    """
    if (
        prompt_state.thinking != "open"
        or answer.calls
        or answer.finish != "stop"
        or answer.other_reasoning is not None
        or "think_close" not in markers.roles
    ):
        return None
    if not (answer.reasoning and answer.content) or marked(answer.reasoning) or marked(answer.content):
        return None
    pieces = (
        Piece("reasoning", None, answer.reasoning),
        markers.piece("think_close"),
        Piece("content", None, answer.content),
        markers.piece("end"),
    )
    return Reading(pieces)


def views(answer: Answer, context: FormatContext, thinking: Thinking, marked: Marked) -> Iterator[View]:
    """Yield the readings of the text fields."""
    texts = [answer.reasoning] if answer.other_reasoning is None else [answer.reasoning, answer.other_reasoning]
    for text in texts:
        notes = () if len(texts) == 1 else ("reasoning_fields_differ",)
        raw = marked(text) or marked(answer.content)
        for reasoning, closed, content, repairs in (
            _splits(text, answer, context.markers, thinking)
            if raw
            else _unmarked(text, answer, context.markers, thinking)
        ):
            for body, ended in _terminators(content, context.markers):
                for view in (
                    _sections(reasoning, closed, body, answer, context.markers)
                    if raw
                    else (_literal(reasoning, closed, body),)
                ):
                    yield _judged(view, answer, thinking, (*notes, *repairs, *ended))
            if raw and (gone := _ran_on(content, context.markers)) is not None:
                yield View(_text("reasoning", reasoning), closed, gone, repairs=(*notes, *repairs), rejects=(RAN_ON,))


Split = tuple[str, bool, str, tuple[str, ...]]
"""(reasoning, closed, content, repairs)"""


def _unmarked(reasoning: str, answer: Answer, markers: Markers, thinking: Thinking) -> Iterator[Split]:
    """Yield the ways to split reasoning from content where no special token is spelled out.

    The fields decide, unless the answer was cut.
    """
    if "think_close" not in markers.roles or thinking == "closed":
        yield reasoning, False, answer.content, ()
        return
    follows = bool(answer.content or answer.calls)
    closed = follows or bool(reasoning and answer.finish != "length")
    yield (
        (reasoning, closed, answer.content, ()) if thinking == "open" or reasoning else ("", False, answer.content, ())
    )
    if answer.finish == "length" and thinking == "open":
        if reasoning and not follows:
            yield reasoning, True, answer.content, ()
        elif answer.content and not reasoning and not answer.calls:
            yield answer.content, False, "", ("content_is_reasoning",)


def _splits(reasoning: str, answer: Answer, markers: Markers, thinking: Thinking) -> Iterator[Split]:
    """Yield the ways to split reasoning from content where think tags may be spelled out.

    The fields as they are come last.
    """
    content, opened, close = answer.content, markers.text("think_open"), markers.text("think_close")
    if close is None or thinking == "closed":
        yield reasoning, False, content, ()
        return
    repairs: tuple[str, ...] = ()
    if opened and reasoning.lstrip().startswith(opened):  # the server added white space outside the tags
        reasoning, repairs = reasoning.lstrip().removeprefix(opened), ("strip_think_open",)
    elif opened and not reasoning and content.lstrip().startswith(opened):
        content, repairs = content.lstrip().removeprefix(opened), ("strip_think_open",)
    if close in reasoning and not content:
        for before, after, literal in _parted(reasoning, close):
            yield before, True, after, (*repairs, "split_close_tag_in_reasoning", *literal)
    elif (whole := reasoning.rstrip()).endswith(close):
        for space in dict.fromkeys(
            ("", reasoning[len(whole) :])
        ):  # white space after the tag: added by the server, or the start of the content
            yield whole.removesuffix(close), True, space + content, (*repairs, "strip_close_tag_in_reasoning")
    elif reasoning and (again := _repeated(reasoning, content, opened or "", close)) is not None:
        yield again[0], True, again[1], (*repairs, "reasoning_given_twice")
    elif reasoning and content.startswith(close):
        yield reasoning, True, content.removeprefix(close), (*repairs, "strip_close_tag_in_content")
    elif not reasoning and close in content:
        for before, after, literal in _parted(content, close):
            yield before, True, after, (*repairs, "split_close_tag_in_content", *literal)
        if thinking == "open":
            yield "", True, content, (*repairs, "literal_close_tag")
        return
    elif repairs:
        yield reasoning, bool(content or answer.calls or answer.finish != "length"), content, repairs
    yield from _unmarked(answer.reasoning, answer, markers, thinking)


def _parted(text: str, tag: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the text before and after a tag, for each of its first places and the last one.

    Any of them may be the real close of the reasoning. The third part holds a repair for all places but the first. It
    makes them a reason to doubt, never to accept: a model hardly ever spells out the tag before it closes its
    reasoning.
    """
    places = list(re.finditer(re.escape(tag), text))
    for number, match in enumerate((*places[: MAX_TAGS - 1], *places[MAX_TAGS - 1 :][-1:])):
        yield text[: match.start()], text[match.end() :], ("literal_close_tag",) if number else ()


def _repeated(reasoning: str, content: str, opened: str, close: str) -> tuple[str, str] | None:
    """Return the reasoning and the rest of a content that repeats the reasoning first, in think tags.

    The result is None for any other content.
    """
    before, tag, after = content.partition(close)
    inside = before.lstrip().removeprefix(opened) if before.lstrip().startswith(opened) else before
    return (inside, after) if tag and inside.strip() and inside.strip() == reasoning.strip() else None


def _terminators(content: str, markers: Markers) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the content without the end tokens that it shows at its very end, then with some of them as text.

    White space after an end token is dropped with it: no model can have emitted that.
    """
    end, rest = markers.text("end"), content
    shorter = []
    while end and (shown := rest.rstrip()).endswith(end):
        rest = shown.removesuffix(end)
        shorter.append(rest)
    for text in reversed(shorter):
        yield text, ("strip_trailing_terminator_text",)
    yield content, ()
    if end and end in rest:
        yield content.partition(end)[0], ("strip_text_after_terminator",)


def _ran_on(content: str, markers: Markers) -> tuple[Piece, ...] | None:
    """Return a content that shows more after an end token, with each special token by its id; None for any other."""
    end = markers.text("end")
    if not end or not content.partition(end)[2].strip():
        return None
    shown = content.rstrip().removesuffix(end)
    pieces: list[Piece] = []
    position = 0
    for match in markers.named.finditer(shown):
        kind = "end" if match.group() == end else "special"
        pieces += _text("content", shown[position : match.start()])
        pieces.append(Piece(kind, markers.special_ids[match.group()], match.group()))
        position = match.end()
    return (*pieces, *_text("content", shown[position:]))


def _sections(reasoning: str, closed: bool, content: str, answer: Answer, markers: Markers) -> Iterator[View]:
    """Yield views with a raw tool section as special tokens or as literal text; the likelier comes first."""
    literal = _literal(reasoning, closed, content)
    structural: list[View] = []
    section = markers.section(content)
    if section is not None:
        body = (*_text("content", section.before), *section.pieces, *_text("content", section.after))
        view = View(literal.reasoning, closed, body, section.calls, repairs=("markers_in_content_to_special_ids",))
        structural.append(_cut(view, section.open_in, section.closed, answer))
        if (wrapped := section.wrapped(markers)) is not None:
            whole = (*_text("content", section.before), *wrapped, *_text("content", section.after))
            structural.append(replace(view, body=whole, repairs=(*view.repairs, INSERTED)))
    elif not content and (section := markers.section(reasoning.removesuffix(markers.text("end") or "\0"))) is not None:
        inside = (*_text("reasoning", section.before), *section.pieces, *_text("content", section.after))
        view = View(
            inside,
            False,
            (),
            section.calls,
            repairs=("markers_in_reasoning_to_special_ids",),
            reasons=("tool_section_inside_reasoning",),
        )
        closing = View(
            _text("reasoning", section.before),
            True,
            inside[bool(section.before) :],
            section.calls,
            repairs=(*view.repairs, "insert_think_close"),
        )
        structural += [_cut(v, section.open_in, section.closed, answer) for v in (view, closing)]
    likely = section is not None and not section.after.strip() and (section.closed or answer.finish == "length")
    yield from [*structural, literal] if likely else [literal, *structural]


def _literal(reasoning: str, closed: bool, content: str) -> View:
    return View(_text("reasoning", reasoning), closed, _text("content", content))


def _cut(view: View, open_in: str | None, closed: bool, answer: Answer) -> View:
    """Record where a raw section breaks off, if it does."""
    if answer.finish == "length" and (open_in or not closed):
        return replace(view, cut_in="call")
    if open_in or not closed:
        return replace(view, reasons=(*view.reasons, "tool_section_unclosed"))
    return view


def _judged(view: View, answer: Answer, thinking: Thinking, repairs: tuple[str, ...]) -> View:
    """Add the earlier repairs, and what the reading as a whole says against the row."""
    reasons, rejects, cut_in, needs_bill = view.reasons, view.rejects, view.cut_in, False
    if answer.finish == "length":
        cut_in = cut_in or (
            "call"
            if _says_calls(answer)
            else "content"
            if view.closed or (view.body and not view.reasoning)
            else "reasoning"
        )
        reasons = (*reasons, TRUNCATED[cut_in])
    elif view.reasoning and not view.body and not answer.calls and not view.raw_calls:
        rejects, needs_bill = ("no_think_close", "empty_answer"), view.closed
        reasons = (*reasons, *(("literal_close_tag",) if "literal_close_tag" in repairs else ()))
    elif "literal_close_tag" in repairs:
        reasons = (*reasons, "literal_close_tag")
    elif thinking == "open" and not view.reasoning and view.body:
        repairs = (*repairs, "reasoning_empty")
    elif not repairs:
        return view
    return View(
        view.reasoning,
        view.closed,
        view.body,
        view.raw_calls,
        cut_in,
        (*repairs, *view.repairs),
        reasons,
        rejects,
        needs_bill,
    )


def _says_calls(answer: Answer) -> bool:
    """Return whether the answer has calls, or was cut inside its first one by the server's word."""
    return bool(answer.calls) or answer.finish_reason in CALL_WORDS


def _tails(
    answer: Answer, view: View, calls: tuple[Piece, ...], context: FormatContext, thinking: Thinking
) -> Iterator[tuple[tuple[Piece, ...], tuple[str, ...]]]:
    """Yield the whole answer with each way to end it.

    That is the end token or, when the answer was cut, the last markers present or not.
    """
    markers = context.markers
    body = _with_lead(view.body, context.format.lead) if calls else view.body
    opens = thinking == "none" and (view.closed or view.reasoning) and "think_open" in markers.roles
    start = (*([markers.piece("think_open")] if opens else ()), *view.reasoning)
    close = (markers.piece("think_close"),) if view.closed and "think_close" in markers.roles else ()
    if view.reasoning and "think_close" not in markers.roles:
        yield (*start, *body, *calls, markers.piece("end")), ("reasoning_has_no_format",)
        return
    whole = (*start, *close, *body, *calls)
    if answer.finish == "length":
        unseen = bool(close) and not body and not calls and not view.repairs
        yield whole[: len(whole) - _closers(calls)], (CUT_AT_MARKER,) if unseen else ()
        for keep in range(_closers(calls), 0, -1):
            yield whole[: len(whole) - keep + 1], (CUT_AT_MARKER,)
        shown = (view.body and answer.finish_reason not in CALL_WORDS) or calls or view.raw_calls
        if not shown and answer.stopped_by is None and (view.closed or thinking != "open"):
            for opening in _openings(markers):
                yield (*whole, *opening), (CUT_AT_MARKER, TRUNCATED["call"])
        return
    yield (*whole, markers.piece("end")), ()
    if RAN_ON in view.rejects:
        yield whole, ()
    if answer.calls and not answer.calls[-1].arguments.rstrip().endswith("}") and (last := _closers(calls)):
        yield whole[: len(whole) - last], (TRUNCATED["call"], "end_token_unclear")
    following = (*body, *calls)
    calls_follow = bool(following) and following[0].kind in ("tools_open", "call_open")
    if close and view.reasoning and calls_follow and INSERTED not in view.repairs:
        yield (*start, *following, markers.piece("end")), ("tool_section_inside_reasoning",)
    if answer.finish == "unknown":
        yield whole, ("finish_unknown",)


def _openings(markers: Markers) -> Iterator[tuple[Piece, ...]]:
    """Yield the markers at the beginning of a tool section, which a server drops where the answer was cut after them.

    The longer one comes last.
    """
    opening = tuple(markers.piece(role) for role in ("tools_open", "call_open") if role in markers.roles)
    for length in range(1, len(opening) + 1):
        yield opening[:length]


def _with_lead(body: tuple[Piece, ...], lead: str) -> tuple[Piece, ...]:
    """Add the template's text between content and calls, unless the content is empty or ends in white space."""
    if not lead or not any(piece.text for piece in body) or body[-1].text[-1:].isspace():
        return body
    if body[-1].token is None:
        return (*body[:-1], body[-1]._replace(text=body[-1].text + lead))
    return (*body, *_text("content", lead))


def _closers(calls: tuple[Piece, ...]) -> int:
    """Count the closing markers at the end of the calls."""
    return sum(
        1 for _ in itertools.takewhile(lambda piece: piece.kind in ("call_close", "tools_close"), reversed(calls))
    )


def _text(kind: str, text: str) -> tuple[Piece, ...]:
    return (Piece(kind, None, text),) if text else ()
