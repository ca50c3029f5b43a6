"""A prompt from a row of the source: columns to checked chat messages, with a stable id. Pure."""

import hashlib
import re
from typing import Any

import orjson

from pipeline.core.errors import InputError
from pipeline.formats.schema.prompts import Prompt
from pipeline.model.conversation_checks import check_messages, check_tools, show
from pipeline.stages.prompts.config import ColumnsSection
from pipeline.stages.prompts.exact_json import exact_json
from pipeline.stages.prompts.tool_schemas import check_schemas

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""ShareGPT's `from` to the API's `role`."""

_MEDIA = frozenset({"audio", "image", "images", "image_url", "video", "videos", "files", "attachments"})
"""Fields of a message that hold something else than text."""

_ID = Prompt.model_fields["id"].metadata[0].pattern
_ID_LENGTH = 16
"""Hex digits of the content hash in an id: 64 bits; a clash in a million prompts has odds below 1 in 10 million."""


def content_hash(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> bytes:
    """Return the digest of a prompt's content; the order of keys in the source does not matter.

    Raises:
        InputError: it holds a value that JSON cannot hold, such as a date or a picture from a Parquet file.

    """
    try:
        return hashlib.sha256(orjson.dumps([messages, tools or None], option=orjson.OPT_SORT_KEYS)).digest()
    except TypeError as error:
        raise InputError(f"the messages and tools must be JSON: {error}") from None


def to_prompt(row: Any, columns: ColumnsSection, *, drop_last_answer: bool) -> Prompt:
    """Return the prompt that a row of the source describes.

    Raises:
        InputError: the row is malformed; the message names the value and the required form (the caller adds the place).

    """
    if not isinstance(row, dict):
        raise InputError(f"a row is an object, as {{'messages': [...]}}; found {show(row)}")
    messages = _messages(row, columns)
    if columns.system is not None and row.get(columns.system):
        messages = [{"role": "system", "content": _text(row[columns.system], columns.system)}, *messages]
    if drop_last_answer:
        messages = _without_last_answer(messages)
    check_messages(messages)
    for number, message in enumerate(messages):
        _check_text_only(number, message)
    messages = [
        {name: value for name, value in message.items() if value is not None or name == "content"}
        for message in messages
    ]
    if messages[-1]["role"] == "assistant":
        raise InputError(
            "the last message is the assistant's, so nothing is left to answer; end with the user's, or set "
            "prompts.drop_last_answer"
        )
    tools = _tools(row, columns)
    return Prompt.model_construct(
        id=_own_id(row, columns) or content_hash(messages, tools).hex()[:_ID_LENGTH], messages=messages, tools=tools
    )


def _check_text_only(number: int, message: dict[str, Any]) -> None:
    """Refuse an empty user message, thoughts in parts, and pictures, sound and files.

    The cost of pictures, sound and files is not bounded by their bytes, and their token ids cannot be rebuilt.
    """
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    if message["role"] == "user" and content is not None and not _text_of(content).strip():
        raise InputError(f"message {number} (user) is empty, so nothing is asked; leave the row out")
    if others := [part for part in parts if part["type"] != "text"]:
        raise InputError(
            f"message {number} ({message['role']}): only text can be asked, as a text or as parts "
            f"{{'type': 'text', 'text'}}; found {show(others[0])}"
        )
    if media := sorted(_MEDIA & {name for name, value in message.items() if value}):
        raise InputError(f"message {number} ({message['role']}): only text can be asked; found {media}")


def _text_of(content: str | list[dict[str, Any]]) -> str:
    """Return the text of a user message, which `check_messages` has checked: a text, or parts of type text."""
    return "".join(part["text"] for part in content) if isinstance(content, list) else content


def _messages(row: dict[str, Any], columns: ColumnsSection) -> list[dict[str, Any]]:
    column = columns.messages or columns.conversations or columns.prompt
    assert column is not None
    if column not in row:
        raise InputError(f"there is no {column!r}; the row has {sorted(row)}; name the columns in prompts.columns")
    value = row[column]
    if columns.prompt is not None:
        return [{"role": "user", "content": _text(value, column)}]
    if not isinstance(value, list) or not value:
        raise InputError(f"{column!r} must be a list of messages with at least one; found {show(value)}")
    return (
        [_sharegpt(number, turn) for number, turn in enumerate(value)] if columns.conversations is not None else value
    )


def _sharegpt(number: int, turn: Any) -> dict[str, Any]:
    if (
        not isinstance(turn, dict)
        or not isinstance(turn.get("from"), str)
        or turn["from"] not in ROLES
        or not isinstance(turn.get("value"), str)
    ):
        raise InputError(f"turn {number} must be {{'from': one of {sorted(ROLES)}, 'value': text}}; found {show(turn)}")
    return {"role": ROLES[turn["from"]], "content": turn["value"]}


def _text(value: Any, column: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{column!r} must be a text that is not empty; found {show(value)}")
    return value


def _without_last_answer(messages: list[Any]) -> list[Any]:
    """Cut before the last assistant message where one ends the conversation's last exchange."""
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    if "assistant" not in roles:
        return messages
    last = len(roles) - 1 - roles[::-1].index("assistant")
    kept = messages if "user" in roles[last + 1 :] else messages[:last]
    if not kept:
        raise InputError("nothing is left once the last answer is dropped: the row has no other message")
    return kept


def _tools(row: dict[str, Any], columns: ColumnsSection) -> list[dict[str, Any]] | None:
    value = row.get(columns.tools) if columns.tools is not None else None
    if isinstance(value, str):
        try:
            value = exact_json(value.encode()) if value.strip() else None
        except orjson.JSONDecodeError as error:
            raise InputError(f"{columns.tools!r} is a text that is not JSON ({error}); found {show(value)}") from None
    if value is None or value == []:
        return None
    check_tools(value)
    check_schemas(value)
    tools: list[dict[str, Any]] = value
    return tools


def _own_id(row: dict[str, Any], columns: ColumnsSection) -> str | None:
    value = row.get(columns.id) if columns.id is not None else None
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not re.fullmatch(_ID, value):
        raise InputError(
            f"{columns.id!r} must be 1 to 200 of the characters A-Z a-z 0-9 _ . : @ + = - (an id is never a path); "
            f"found {show(value)}"
        )
    return value
