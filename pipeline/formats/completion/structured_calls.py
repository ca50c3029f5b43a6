"""Tool calls that a message holds as objects."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pipeline.core.describe import describe
from pipeline.formats.completion.values import UnusableFieldError, in_order


class Call(NamedTuple):
    """One structured tool call."""

    id: str
    """As the server named it; empty without a name."""
    name: str
    arguments: str
    """Byte for byte if the server sent a string."""
    raw: bool = True
    """False if the server sent an object, so that the model's own text is lost."""


def read_calls(message: dict[str, Any]) -> Iterator[Call]:
    """Read `tool_calls`, or the older `function_call`.

    Raises:
        UnusableFieldError: something in it is not a call.

    """
    listed = message.get("tool_calls")
    legacy = message.get("function_call")
    if not listed and isinstance(legacy, dict):
        listed = [{"function": legacy}]
    if listed is None:
        return
    if isinstance(listed, dict):
        listed = [listed]
    if not isinstance(listed, list):
        raise UnusableFieldError("tool_call_malformed", f"`tool_calls` is {describe(listed)}")
    for item in in_order(listed):
        function = item.get("function", item) if isinstance(item, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UnusableFieldError("tool_call_malformed", f"the call is {describe(item)}")
        arguments, native = function.get("arguments"), item.get("id")
        is_text = arguments is None or isinstance(arguments, str)
        yield Call(
            native if isinstance(native, str) else "" if native is None else str(native),
            function["name"],
            (arguments or "") if is_text else _as_json(arguments),
            is_text,
        )


def _as_json(arguments: Any) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError:
        raise UnusableFieldError("tool_call_malformed") from None
