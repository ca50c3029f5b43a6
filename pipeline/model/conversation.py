"""What a conversation and its tools must look like before they are asked or rendered: `renderers` takes anything, in silence."""

import json
from typing import Any

from pipeline.core.errors import InputError

KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def show(value: Any) -> str:
    """Give a value for a message: short, and on one line."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def check_messages(messages: Any) -> None:
    """Check a list of chat messages.

    Raises:
        InputError: it is none; the message names the number of the message, what was found and what is needed.

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
                f"message {number} ({message['role']}): content must be a text or a list of parts; found {show(content)}"
            )
        if isinstance(content, list) and (odd := [part for part in content if not _is_text(part, message["role"])]):
            raise InputError(
                f"message {number} ({message['role']}): only text can be rendered, as parts {{'type': 'text', 'text'}}; found {show(odd[0])}"
            )


def _is_text(part: Any, role: str) -> bool:
    """Whether a part is text, or an earlier thought of the assistant: whatever else stands there would be left out of the prompt, in silence."""
    kind = part.get("type") if isinstance(part, dict) else None
    return (kind == "text" or (kind == "thinking" and role == "assistant")) and isinstance(part.get(kind), str)


def check_tools(tools: Any) -> None:
    """Check the tools on offer; null and an empty list offer none.

    Raises:
        InputError: they are not in OpenAI's form; the message names the tool's number.

    """
    if tools is None:
        return
    if not isinstance(tools, list):
        raise InputError(f"'tools' must be a list of tools; found {show(tools)}")
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InputError(
                f"tool {number} must be {{'type': 'function', 'function': {{'name', 'parameters'}}}}; found {show(tool)}"
            )
