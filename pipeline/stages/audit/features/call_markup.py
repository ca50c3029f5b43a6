"""Tool calls, read from the structural tokens alone, independently of the recorded segments."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from pipeline.stages.audit.features.retokenize import decode
from pipeline.stages.audit.inputs.context import Context

CALL_ROLES = {"T": "tools_open", "O": "call_open", "A": "call_args", "C": "call_close", "t": "tools_close"}
"""A letter for the role of each structural token, in which the grammar of the tokens is a regular expression."""


@dataclass(frozen=True, slots=True)
class MarkedCall:
    """One tool call as the model marked it."""

    position: int
    """Position of the token that opens the call."""
    name: str | None
    """Name of the function, or None where the header does not have the target's form."""
    header: str
    """Text between the opening and the arguments."""
    index: int | None
    """Number in the call's id, or None where the format has none."""
    arguments: str
    """Arguments as written, which may not be JSON."""
    arguments_position: int


@dataclass(frozen=True, slots=True)
class CallMarkup:
    """The tool calls of one answer, and the first fault in their markup."""

    calls: list[MarkedCall]
    fault: int | None
    """Position of the first structural token out of order, or of the last one where one is missing after it."""


def whole_pattern(context: Context) -> tuple[str, str]:
    """Return the grammar of the tool tokens in whole and in cut answers, as patterns over the letters of CALL_ROLES."""
    has = {letter: context.role(role) is not None for letter, role in CALL_ROLES.items()}
    call = "OAC" if has["A"] else "OC"
    cut = "(?:OA?)?" if has["A"] else "O?"
    if has["T"]:
        return f"(?:T(?:{call})+t)?", f"(?:T(?:{call})*(?:{cut}|t))?"
    return f"(?:{call})*", f"(?:{call})*{cut}"


def read_markup(context: Context, ids: list[int], *, cut: bool) -> CallMarkup:
    """Read the tool calls of one answer; with ``cut`` the answer may stop anywhere."""
    letters = {context.role(role): letter for letter, role in CALL_ROLES.items() if context.role(role) is not None}
    marks = [(letters[token], position) for position, token in enumerate(ids) if token in letters]
    word = "".join(letter for letter, _position in marks)
    whole, prefix = whole_pattern(context)
    fault = None
    if not re.fullmatch(prefix if cut else whole, word):
        good = next(length for length in range(len(word), -1, -1) if re.fullmatch(prefix, word[:length]))
        fault = marks[min(good, len(marks) - 1)][1]
    return CallMarkup(_calls(context, ids, marks), fault)


def _calls(context: Context, ids: list[int], marks: list[tuple[str, int]]) -> list[MarkedCall]:
    read = _READERS[context.record.chat]
    calls = []
    for number, (letter, position) in enumerate(marks):
        if letter != "O":
            continue
        after = marks[number + 1 :]
        close = next((at for mark, at in after if mark in "COTt"), None)
        if close is None or ids[close] != context.role("call_close"):
            continue
        args = next((at for mark, at in after if mark == "A" and at < close), None)
        calls.append(read(context, position, ids[position + 1 : close], None if args is None else args - position - 1))
    return calls


def _text(context: Context, ids: list[int]) -> str:
    size = len(context.pieces)
    return decode(b"".join(context.pieces[token] for token in ids if 0 <= token < size))[0]


def _kimi(context: Context, position: int, body: list[int], args: int | None) -> MarkedCall:
    """Read ``functions.name:0``, or another form that `tool_id_format` gives, and then the arguments."""
    split = len(body) if args is None else args
    header = _text(context, body[:split]).strip()
    pattern = (
        re.escape(context.record.tool_id_format or "{name}")
        .replace(r"\{name\}", "(?P<name>.+)")
        .replace(r"\{index\}", r"(?P<index>\d{1,9})")
    )
    match = re.fullmatch(pattern, header, re.DOTALL)
    fields = match.groupdict() if match else {}
    index = int(fields["index"]) if fields.get("index") else None
    return MarkedCall(
        position, fields.get("name"), header, index, _text(context, body[split + 1 :]), position + split + 2
    )


def _json_body(context: Context, position: int, body: list[int], _args: int | None) -> MarkedCall:
    """Read ``{"name": ..., "arguments": {...}}``."""
    text = _text(context, body)
    try:
        value: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return MarkedCall(position, None, text.strip(), None, text, position + 1)
    arguments = value.get("arguments", {})
    try:
        written = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    except orjson.JSONEncodeError:  # nested deeper than orjson writes
        written = text
    return MarkedCall(position, value["name"], value["name"], None, written, position + 1)


def _deepseek(context: Context, position: int, body: list[int], args: int | None) -> MarkedCall:
    """Read ``function<sep>name``, and then the arguments in a fenced JSON block."""
    split = 0 if args is None else args
    text = _text(context, body[split + 1 :])
    name, _, rest = text.partition("\n")
    fenced = re.fullmatch(r"\s*```json\n(.*?)\n```\s*", rest, re.DOTALL)
    return MarkedCall(
        position, name.strip() or None, name.strip(), None, fenced.group(1) if fenced else rest, position + split + 2
    )


_READERS: dict[str, Callable[[Context, int, list[int], int | None], MarkedCall]] = {
    "kimi_k25": _kimi,
    "kimi_k2": _kimi,
    "qwen3": _json_body,
    "deepseek_v3": _deepseek,
}
