"""How an answer ended: the end token, or a stop string, a stop token or a limit behind the server's word "stop".

A server's "stop" says that generation ended before its limit, not that the model emitted the end token. Gateways also
say it for every answer.
"""

from typing import NamedTuple

from pipeline.answers.readings.markers import Markers
from pipeline.formats.completion.choices import Answer
from pipeline.formats.completion.usage import Bill

REPLACEMENT = "\ufffd"
"""Shown by servers for bytes that are not text: the ids behind it are lost."""

STOPPED_BY_STRING = "stopped_by_string"
"""Flag: a stop string of the request ended the answer."""

STOPPED_BY_TOKEN = "stopped_by_other_token"  # noqa: S105 -- a token of text
"""Flag: a stop token that is not the target's end token ended the answer."""

AT_LIMIT = "length_limit_reached"
"""Flag: the server says that the answer ended by itself, but its bill is as long as the request or server allows."""

MAYBE_STRING = "stop_string_possible"
"""Flag: the request has stop strings or stop tokens, and the server does not say what ended the answer."""

INSIDE_CHARACTER = "cut_inside_character"
"""Flag: the answer breaks off inside a character, whose tokens no text shows."""


CALLS_NOT_SHOWN = "tool_calls_not_shown"
"""Flag: the server says that the answer has tool calls and shows none, as vLLM does where a call was cut."""

CALL_WORDS = frozenset({"tool_calls", "function_call", "tool_use"})
"""Reasons to finish that say that the answer has tool calls."""


class Bounds(NamedTuple):
    """The things in a request that end an answer before its end token."""

    max_tokens: int | None = None
    """Most completion tokens; None when it is not known."""
    stops: bool = False
    """True when the request has stop strings or stop tokens."""


NO_BOUNDS = Bounds()

STOP_FIELDS = ("stop", "stop_token_ids", "stop_regex")
"""Fields of a request that end an answer at a string or a token."""


class Ending(NamedTuple):
    """An answer with the ending that is proven, and the codes of the doubts about it."""

    answer: Answer
    """Its `finish` is `length` when nothing proves an end token."""
    doubts: tuple[str, ...] = ()
    """Codes of why the server's "stop" is not an end token; empty when it may be one."""


def proven_ending(answer: Answer, bill: Bill, bounds: Bounds, markers: Markers) -> Ending:
    """Return the answer as cut where its "stop" does not prove an end token."""
    if answer.finish == "length":
        return Ending(answer, (INSIDE_CHARACTER,) if _inside_character(answer) else ())
    doubts = tuple(_doubts(answer, bill, bounds, markers))
    return Ending(answer._replace(finish="length") if doubts else answer, doubts)


def _doubts(answer: Answer, bill: Bill, bounds: Bounds, markers: Markers) -> list[str]:
    end, token = markers.roles.get("end", (None, None))
    by, codes = answer.stopped_by, []
    words = {(word or "").lower() for word in (answer.finish_reason, answer.native_finish_reason)}
    if (isinstance(by, str) and by != end) or "stop_sequence" in words:
        codes.append(STOPPED_BY_STRING)
    elif isinstance(by, int) and by != token:
        codes.append(STOPPED_BY_TOKEN)
    elif bounds.stops and not answer.names_stop:
        codes.append(MAYBE_STRING)
    if bounds.max_tokens is not None and bill.tokens is not None and bill.tokens >= bounds.max_tokens:
        codes.append(AT_LIMIT)
    if (
        answer.finish_reason in CALL_WORDS
        and not answer.calls
        and not markers.tools_in(answer.content, answer.reasoning)
    ):
        codes.append(CALLS_NOT_SHOWN)
    if _inside_character(answer):
        codes.append(INSIDE_CHARACTER)
    return codes


def _inside_character(answer: Answer) -> bool:
    """Return whether the text breaks off inside a character."""
    last = answer.calls[-1].arguments if answer.calls else answer.content or answer.reasoning
    return last.endswith(REPLACEMENT)
