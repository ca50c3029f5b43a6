"""Texts that the model may have written for structured tool calls.

A server may have changed their ids or arguments.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.answers.readings.chat_formats import CallIds, ChatFormat, NamedCall
from pipeline.answers.readings.markers import Markers, Piece
from pipeline.formats.completion.choices import Answer
from pipeline.formats.completion.structured_calls import Call


@dataclass(frozen=True, slots=True)
class FormatContext:
    """The target's markers and format, which reading an answer needs besides the answer."""

    markers: Markers
    format: ChatFormat
    call_ids: CallIds


CallOption = tuple[tuple[Piece, ...], tuple[str, ...], tuple[str, ...]]
"""Pieces of all structured calls, repairs, reasons."""


def call_options(
    answer: Answer, raw_calls: int, context: FormatContext, calls_before: int | None
) -> Iterator[CallOption]:
    """Yield the ways in which the model may have written the structured calls, the likeliest first.

    The text already holds `raw_calls` of them.
    """
    if not answer.calls:
        yield (), (), ()
        return
    if raw_calls:
        yield (
            (),
            ("tool_calls_given_twice",) if raw_calls == len(answer.calls) else ("tool_calls_differ_from_text",),
            (),
        )
        return
    if "call_open" not in context.markers.roles:
        yield (), (), ("tool_calls_have_no_format",)
        return
    for separator in context.format.separators:
        for ids, id_reasons in _id_options(answer.calls, context.call_ids, calls_before):
            for arguments, repairs, reasons in _argument_options(answer.calls):
                named = [NamedCall(i, call.name, a) for i, call, a in zip(ids, answer.calls, arguments, strict=True)]
                yield _section(named, separator, context), repairs, (*id_reasons, *reasons)


def _section(calls: list[NamedCall], separator: str, context: FormatContext) -> tuple[Piece, ...]:
    pieces: list[Piece] = [context.markers.piece("tools_open")] if "tools_open" in context.markers.roles else []
    for number, call in enumerate(calls):
        if number:
            pieces += [Piece("content", None, separator)] if separator else []
        pieces += context.format.call(call, context.markers)
    return (*pieces, *([context.markers.piece("tools_close")] if "tools_close" in context.markers.roles else ()))


def _id_options(
    calls: tuple[Call, ...], call_ids: CallIds, calls_before: int | None
) -> Iterator[tuple[list[str], tuple[str, ...]]]:
    """Yield the ids that the model may have given the calls, with the codes of the flags that each raises."""
    given = [call.id for call in calls]
    if not call_ids.template:
        yield given, ()
        return
    kinds = {call_ids.kind(call.id, call.name) for call in calls}
    first = calls_before or 0
    numbered = [[call_ids.native(call.name, start + n) for n, call in enumerate(calls)] for start in (first, first + 1)]
    if kinds == {"native"}:
        yield given, ()
        if calls_before is not None and given != numbered[0]:
            yield (
                numbered[0],
                (),
            )  # the model counts through the conversation; some servers number each reply's calls from 0
        return
    digits = ["".join(re.findall(r"\d+", call.id)[-1:]) for call in calls]
    own = [
        call_ids.native(call.name, int(d)) if d and len(d) < 4 else numbered[0][n]
        for n, (d, call) in enumerate(zip(digits, calls, strict=True))
    ]
    if "server" in kinds:
        mixed = [
            call.id if call_ids.kind(call.id, call.name) == "native" else name
            for call, name in zip(calls, numbered[0], strict=True)
        ]
        options, reason = [mixed, numbered[0], numbered[1], given], "tool_id_rewritten_by_server"
    else:
        options, reason = [given, own, numbered[0]], "tool_id_not_native"
    for option in options:
        yield option, (reason,)


def _argument_options(calls: tuple[Call, ...]) -> Iterator[tuple[list[str], tuple[str, ...], tuple[str, ...]]]:
    """Yield the arguments of the calls as they came, then as they may have been before the server rewrote them."""
    verbatim = [call.arguments for call in calls]
    objects = [_json_object(text) for text in verbatim]
    reasons = () if all(value is not None for value in objects) else ("arguments_not_an_object",)
    if not all(call.raw for call in calls):
        reasons = (*reasons, "arguments_not_raw")
    yield verbatim, (), reasons
    unescaped = [unescape_non_ascii(text) for text in verbatim]
    if unescaped != verbatim:
        yield unescaped, ("unescape_non_ascii",), (*reasons, "arguments_escaped_by_server", "count_mismatch")
    if "arguments_not_raw" in reasons:
        yield [_compact(text) for text in verbatim], ("compact_arguments",), reasons


def _compact(text: str) -> str:
    """Return JSON without white space between its tokens; text that is not JSON stays as it is."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text


_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)((?:\\u[0-9a-fA-F]{4})+)")


def unescape_non_ascii(text: str) -> str:
    r"""Replace ``\uXXXX`` escapes of characters beyond ASCII by the characters.

    Every other escape and all spacing stays.
    """

    def replaced(match: re.Match[str]) -> str:
        units = [int(digits, 16) for digits in match[2].split("\\u")[1:]]
        raw = b"".join(unit.to_bytes(2, "little") for unit in units)
        try:
            decoded = raw.decode("utf-16-le")
        except UnicodeDecodeError:
            return match[0]
        return match[1] + "".join(char if ord(char) > 127 else f"\\u{ord(char):04x}" for char in decoded)

    return _ESCAPE.sub(replaced, text) if "\\u" in text else text


def respaced(answer: Answer) -> Answer | None:
    """Return the answer with the arguments of each call in the other usual spacing.

    The result is None where some are in neither spacing, or nothing changes.
    """
    calls = tuple(call._replace(arguments=_respaced(call.arguments) or "") for call in answer.calls)
    return answer._replace(calls=calls) if calls != answer.calls and all(call.arguments for call in calls) else None


def _respaced(text: str) -> str | None:
    """Return compact JSON in the default spacing of most libraries, and JSON in that spacing compact.

    The result is None where the JSON is in neither.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    ways = [json.dumps(value, ensure_ascii=False, separators=separators) for separators in ((",", ":"), (", ", ": "))]
    return ways[1 - ways.index(text)] if text in ways else None


def _json_object(text: str) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def in_order(tools: object, name: str) -> bool:
    """Return whether the request lists the tool's parameters alphabetically.

    In that case arguments in that order say nothing of the server. `tools` is unchecked.
    """
    for tool in tools if isinstance(tools, list) else ():
        function = _inside(tool, "function")
        listed = list(_inside(function, "parameters", "properties"))
        if function.get("name") == name and listed == sorted(listed):
            return True
    return False


def _inside(value: object, *names: str) -> dict[str, Any]:
    """Return the object under these names, or an empty one."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def keys_in(call: Call) -> Iterator[tuple[str, ...]]:
    """Yield the keys, in order, of every object with two or more in the arguments of a call."""
    with contextlib.suppress(ValueError, RecursionError):
        yield from _keys(json.loads(call.arguments))


def _keys(value: object) -> Iterator[tuple[str, ...]]:
    inside: list[object] = []
    if isinstance(value, dict):
        if len(value) > 1:
            yield tuple(value)
        inside = list(value.values())
    elif isinstance(value, list):
        inside = value
    for item in inside:
        yield from _keys(item)
