"""The texts of a message: content, and reasoning in every field that servers use."""

from typing import Any

from pipeline.core.describe import describe
from pipeline.formats.completion.values import UnusableFieldError

_NOT_RAW = ("summary", "encrypted", "redacted")
"""In the type of a block of reasoning that another model wrote, or that nobody can read."""
_THOUGHTS = ("thinking", "reasoning")
"""The type of a part of `content` that holds reasoning begins so."""
_REASONING = ("reasoning", "reasoning_content", "thinking")
_BLOCKS = ("reasoning_details", "thinking_blocks")
_ANY_TEXT = ("content", *_REASONING, *_BLOCKS, "tool_calls", "function_call", "refusal")


def has_text(choice: dict[str, Any]) -> bool:
    """Return whether a choice holds any text or call, without reading it."""
    message = choice.get("message")
    return any(message.get(field) for field in _ANY_TEXT) if isinstance(message, dict) else bool(choice.get("text"))


def read_content(value: Any) -> tuple[str, str, bool]:
    """Return text, reasoning and whether all of it can be read, for `content`: one text, or a list of parts.

    Raises:
        UnusableFieldError: it is not text.

    """
    if not isinstance(value, list):
        return _text(value), "", True
    kinds = [str(part.get("type")) if isinstance(part, dict) else "" for part in value]
    unreadable = [any(word in kind for word in _NOT_RAW) for kind in kinds]
    thoughts = [kind.startswith(_THOUGHTS) for kind in kinds]
    texts = (
        _part(part)
        for part, thought, hidden in zip(value, thoughts, unreadable, strict=True)
        if not thought and not hidden
    )
    return (
        "".join(texts),
        "".join(_thought(part) for part, thought in zip(value, thoughts, strict=True) if thought),
        not any(unreadable),
    )


def read_reasoning(message: dict[str, Any], in_content: str) -> tuple[str, str | None, bool]:
    """Return reasoning, a second text that contradicts it, and whether it is the model's own words.

    Raises:
        UnusableFieldError: it is not text.

    """
    named = [text for field in _REASONING if (value := message.get(field)) is not None and (text := _text(value))]
    if in_content:
        named.append(in_content)
    raw = True
    for field in _BLOCKS:
        if (details := message.get(field)) and isinstance(details, list):
            blocks = [block for block in details if isinstance(block, dict)]
            raw = raw and not any(word in str(block.get("type")) for block in blocks for word in _NOT_RAW)
            numbered = all(type(block.get("index")) is int for block in blocks)
            orders = (sorted(blocks, key=lambda block: block["index"]) if numbered else blocks, blocks)
            named += [joined for ordered in orders if (joined := "".join(map(_thought, ordered)))]
    first = named[0] if named else ""
    return first, next((text for text in named if text != first), None), raw


def _thought(block: dict[str, Any]) -> str:
    """Return the text of a block of reasoning; empty if it holds none of the model's words."""
    if any(word in str(block.get("type")) for word in _NOT_RAW):
        return ""
    return _text(next((block[key] for key in ("text", "thinking") if block.get(key) is not None), None))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_part(part) for part in value)
    return _part(value)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    raise UnusableFieldError("content_not_text", f"a text is needed, found is {describe(part)}")
