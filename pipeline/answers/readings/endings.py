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
"""Flag: the server says that the answer ended by itself, and its bill is as long as the request or the server allows."""

INSIDE_CHARACTER = "cut_inside_character"
"""Flag: the answer breaks off inside a character, whose tokens no text shows."""


class Ending(NamedTuple):
    """An answer with the ending that is proven, and the codes of the doubts about it."""

    answer: Answer
    """Its `finish` is `length` when nothing proves an end token."""
    doubts: tuple[str, ...] = ()
    """Codes of why the server's "stop" is not an end token; empty when it may be one."""


def proven_ending(answer: Answer, bill: Bill, limit: int | None, markers: Markers) -> Ending:
    """Return the answer as cut where its "stop" does not prove an end token.

    `limit` is the most completion tokens that the request or the server allows; None when it is not known.
    """
    if answer.finish == "length":
        return Ending(answer, (INSIDE_CHARACTER,) if _inside_character(answer) else ())
    doubts = tuple(_doubts(answer, bill, limit, markers))
    return Ending(answer._replace(finish="length") if doubts else answer, doubts)


def _doubts(answer: Answer, bill: Bill, limit: int | None, markers: Markers) -> list[str]:
    end, token = markers.roles.get("end", (None, None))
    by, codes = answer.stopped_by, []
    words = {(word or "").lower() for word in (answer.finish_reason, answer.native_finish_reason)}
    if (isinstance(by, str) and by != end) or "stop_sequence" in words:
        codes.append(STOPPED_BY_STRING)
    elif isinstance(by, int) and by != token:
        codes.append(STOPPED_BY_TOKEN)
    if limit is not None and bill.tokens is not None and bill.tokens >= limit:
        codes.append(AT_LIMIT)
    if _inside_character(answer):
        codes.append(INSIDE_CHARACTER)
    return codes


def _inside_character(answer: Answer) -> bool:
    """Return whether the text breaks off inside a character."""
    last = answer.calls[-1].arguments if answer.calls else answer.content or answer.reasoning
    return last.endswith(REPLACEMENT)
