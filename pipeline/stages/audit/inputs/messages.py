"""The texts of a prompt's messages."""

from collections.abc import Iterator
from typing import Any


def texts_of(message: Any) -> Iterator[str]:
    """Yield the texts of a chat message, whose content is a string or a list of parts."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else []:
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


def messages_of(prompt: Any) -> list[dict[str, Any]]:
    """Return the messages of a prompt; a thing that is not a message is left out."""
    messages = prompt.get("messages") if isinstance(prompt, dict) else None
    return [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []


def question(prompt: Any) -> str | None:
    """Return the text of the last user message of a prompt, or None where there is none."""
    users = [message for message in messages_of(prompt) if message.get("role") == "user"]
    return "".join(texts_of(users[-1])) or None if users else None


def message_texts(prompt: Any) -> list[str]:
    """Return the text of each message of a prompt, of every role, the reasoning of earlier answers included."""
    texts = []
    for message in messages_of(prompt):
        texts.append("".join(texts_of(message)))
        texts += [text for key in ("reasoning_content", "reasoning") if isinstance(text := message.get(key), str)]
    return [text for text in texts if text]
