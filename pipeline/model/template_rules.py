"""What the chat template of each format takes, and what it does in silence: a prompt that it would change is refused.

Sources: the templates in the published `tokenizer_config.json` of each model. Kimi-K2 and K2.5 render every role but user
and assistant as a system message that names the role. Qwen3 renders system, user, assistant and tool, and nothing for
another role. DeepSeek-V3 joins all system texts by an empty line in front of the first turn, has no branch for another
role than user, assistant and tool, and never reads `tools`.
"""

from typing import Any, Literal, NamedTuple

from pipeline.core.errors import InputError


class TemplateRules(NamedTuple):
    """The rules of one chat format."""

    roles: frozenset[str]
    """Roles that the template renders."""
    tools: bool
    """Whether it renders the tools on offer."""
    system: Literal["in_place", "in_front"]
    """Where it renders a system message: in its place, or all of them joined in front of the first turn."""
    thinking: str | None
    """Name of the template's switch between thinking and instant mode; None without one."""
    normalizer: Literal["NFC"] | None
    """Normal form into which the model's tokenizer puts a prompt before it cuts it; None for none."""


_COMMON = frozenset({"system", "user", "assistant", "tool"})

RULES = {
    "kimi_k25": TemplateRules(_COMMON | {"developer"}, True, "in_place", "thinking", None),
    "kimi_k2": TemplateRules(_COMMON | {"developer"}, True, "in_place", None, None),
    "qwen3": TemplateRules(_COMMON, True, "in_place", "enable_thinking", "NFC"),
    "deepseek_v3": TemplateRules(_COMMON, False, "in_front", None, None),
}
"""Chat format to its rules."""


def check_template(chat: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> None:
    """Check that the template of a chat format says all of a conversation.

    Args:
        chat: the chat format.
        messages: as `conversation_checks.check_messages` takes them.
        tools: the tools on offer that the prompt shall hold.

    Raises:
        InputError: the template would drop a message or the tools, or the last message is an answer that was begun.

    """
    rules = RULES[chat]
    for number, message in enumerate(messages):
        if message["role"] not in rules.roles:
            raise InputError(
                f"message {number}: the template of the chat format {chat} drops role {message['role']!r} in silence; "
                f"it renders {sorted(rules.roles)}: give the text another role"
            )
    if tools and not rules.tools:
        raise InputError(
            f"'tools': the template of the chat format {chat} does not render tools, so the model would not see them; "
            "leave them out (send_tools: false), or describe them in a system message"
        )
    if messages[-1]["role"] == "assistant":
        raise InputError(
            f"message {len(messages) - 1}: the last message is the assistant's; servers close it or continue it, so the "
            "prompt is not known; end with a message of the user or of a tool"
        )


def as_rendered(chat: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages as the template reads them: system texts where it puts them, reasoning under one name."""
    read = [_with_reasoning(message) for message in messages]
    if RULES[chat].system == "in_place" or not any(message["role"] == "system" for message in read[1:]):
        return read
    texts = [_text(message) for message in read if message["role"] == "system"]
    rest = [message for message in read if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest]


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
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


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content if isinstance(content, str) else ""
