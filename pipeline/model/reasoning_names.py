"""One name for the reasoning of earlier turns: servers and clients write it under three, the templates read one."""

from typing import Any


def with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Return an assistant's message with its reasoning in `reasoning_content`, the name that the templates read.

    vLLM writes `reasoning`, OpenRouter `reasoning` and `reasoning_details` (a list of parts with `text`).
    """
    if message["role"] != "assistant" or message.get("reasoning_content") is not None:
        return message
    reasoning = message.get("reasoning")
    details = message.get("reasoning_details")
    if not isinstance(reasoning, str) and isinstance(details, list):
        texts = [part.get("text") for part in details if isinstance(part, dict)]
        reasoning = "".join(text for text in texts if isinstance(text, str)) or None
    if not isinstance(reasoning, str):
        return message
    rest = {key: value for key, value in message.items() if key not in ("reasoning", "reasoning_details")}
    return {**rest, "reasoning_content": reasoning}
