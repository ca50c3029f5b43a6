"""Table of what each chat format's own template does with roles, names, tools and system messages."""

from typing import Any, NamedTuple

from pipeline.core.errors import InputError


class FormatRules(NamedTuple):
    """Parts of a conversation that a format's published template renders, and those that it leaves out."""

    roles: frozenset[str] = frozenset({"system", "user", "assistant", "tool"})
    """Roles that reach the prompt; the template drops a message of any other role silently."""
    names: frozenset[str] = frozenset({"tool"})
    """Roles whose field `name` is rendered, or adds nothing: a tool result belongs to its call."""
    tools: bool = True
    """Whether the template declares the tools on offer."""
    thoughts: bool = True
    """Whether an earlier thought, given as a part of the content, is rendered."""
    several_calls: bool = True
    """Whether a second earlier tool call is rendered as the template does."""
    gathers_system: bool = False
    """Whether all system texts go before the first turn, joined by two line breaks, wherever they were."""
    thinking: str | None = None
    """Name of the option that switches the reasoning on and off; null if the format has no reasoning."""


_EVERY_ROLE = frozenset({"system", "developer", "user", "assistant", "tool"})

RULES = {
    # chat_template.jinja of moonshotai/Kimi-K2.5: the role's name is `message.get('name') or message['role']`
    "kimi_k25": FormatRules(roles=_EVERY_ROLE, names=_EVERY_ROLE, thinking="thinking"),
    # moonshotai/Kimi-K2-Instruct names turns in the same way, but the library renders the name of a tool result only
    "kimi_k2": FormatRules(thoughts=False),
    # Qwen/Qwen3-8B: no branch for the role developer, and `name` is never read
    "qwen3": FormatRules(thinking="enable_thinking"),
    # deepseek-ai/DeepSeek-V3-0324: a first loop gathers every system text; `tools` and the role developer are never
    # read; its flags for the first call and the first result are never reset, which the library does not follow
    "deepseek_v3": FormatRules(tools=False, thoughts=False, several_calls=False, gathers_system=True),
}
"""Rules by chat format; a new format adds a row."""


def check_format(chat: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> None:
    """Check that the format's template renders all of a conversation, which `check_messages` has checked.

    Raises:
        InputError: the template would drop or rewrite a part; the error names the message's number and the format.

    """
    rules = RULES[chat]
    if tools and not rules.tools:
        raise InputError(
            f"the template of {chat} renders no tools, so the model would not see them; leave the tools out, or choose "
            "a target whose format has them"
        )
    for number, message in enumerate(messages):
        role = message["role"]
        if role not in rules.roles:
            raise InputError(
                f"message {number}: the template of {chat} drops the role {role}; use one of {sorted(rules.roles)}"
            )
        if message.get("name") and role not in rules.names:
            raise InputError(
                f"message {number} ({role}): the template of {chat} drops the field 'name'; remove it, or write the "
                "name into the content"
            )
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        if not rules.thoughts and any(part["type"] == "thinking" for part in parts):
            raise InputError(f"message {number} ({role}): the template of {chat} drops parts of type 'thinking'")
    if not rules.several_calls and sum(len(message.get("tool_calls") or []) for message in messages) > 1:
        raise InputError(
            f"the template of {chat} separates a second tool call otherwise than the renderer does; "
            "keep one call at most"
        )
    if messages[-1]["role"] == "assistant":
        raise InputError(
            f"message {len(messages) - 1}: the last message is the assistant's; the template of {chat} closes that "
            "turn and opens another, and a server may continue it instead; end with the user's or a tool's message"
        )


def arrange(chat: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages in the order in which the format's template renders them."""
    if not RULES[chat].gathers_system:
        return messages
    return sorted(messages, key=lambda message: message["role"] != "system")
