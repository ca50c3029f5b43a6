"""Checks of a conversation and its tools before they are sent or rendered: `renderers` accepts anything silently."""

import json
from typing import Any

from pipeline.core.errors import InputError

KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def show(value: Any) -> str:
    """Return a value as one line of at most 80 characters, for error messages."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def check_messages(messages: Any) -> None:
    """Check a list of chat messages.

    Raises:
        InputError: it is malformed; the error names the chat message's number, its value and the required form.

    """
    if not isinstance(messages, list) or not messages:
        raise InputError(f"'messages' must be a list of messages with at least one; found {show(messages)}")
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InputError(f"message {number} must be an object {{'role', 'content'}}; found {show(message)}")
        if not isinstance(message.get("role"), str) or message["role"] not in KNOWN_ROLES:
            raise InputError(
                f"message {number}: role must be one of {sorted(KNOWN_ROLES)}; found {show(message.get('role'))}"
            )
        content = message.get("content")
        if content is None and not message.get("tool_calls"):
            raise InputError(f"message {number} ({message['role']}) has no content")
        if content is not None and not isinstance(content, str | list):
            raise InputError(
                f"message {number} ({message['role']}): content must be a text or a list of parts; "
                f"found {show(content)}"
            )
        parts = content if isinstance(content, list) else []
        if others := [part for part in parts if not _is_text(part, message["role"])]:
            raise InputError(
                f"message {number} ({message['role']}): only text can be rendered, as parts "
                f"{{'type': 'text', 'text'}}; found {show(others[0])}"
            )


def _is_text(part: Any, role: str) -> bool:
    """Return whether a part is text or an earlier thought of the assistant; all else would silently be left out."""
    kind = part.get("type") if isinstance(part, dict) else None
    return (kind == "text" or (kind == "thinking" and role == "assistant")) and isinstance(part.get(kind), str)


def check_tools(tools: Any) -> None:
    """Check the tools on offer; null and an empty list are allowed.

    Raises:
        InputError: a tool is not in OpenAI's form; the message names its number.

    """
    if tools is None:
        return
    if not isinstance(tools, list):
        raise InputError(f"'tools' must be a list of tools; found {show(tools)}")
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InputError(
                f"tool {number} must be {{'type': 'function', 'function': {{'name', 'parameters'}}}}; "
                f"found {show(tool)}"
            )
