"""Prompts as claims: the readings of a conversation that servers make, and the one that the billed count supports.

A server may render a conversation otherwise than the model's template does: it spaces the arguments of earlier calls
anew, loses reasoning or tools, joins the parts of a text, closes the thinking. Each such habit is a reading. A reading
is taken only if the bill tells it from all others.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

from pipeline.core.errors import InputError
from pipeline.formats.schema.tokens import PromptEvidence

Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]] | None, bool | None]
"""Messages, tools, and whether the model shall think (None: as the template has it)."""

Render = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None, bool | None], list[int]]

SMALL_OFFSETS = frozenset({-1, 1, 2})
"""Differences on all rows of a provider that need no text: a token counted twice, an end counted or not."""

MIN_SAME, SAME_SHARE = 4, 0.6
"""Rows, and share of a provider's rows, from which a constant difference is its habit."""

MOST_CHANCE = 4
"""A conclusion from rows is drawn when more than this many of them speak for it for each that speaks against it."""


class PromptReading(NamedTuple):
    """A prompt and what is known of it."""

    ids: list[int]
    evidence: PromptEvidence
    delta: int | None
    """Billed minus rendered tokens; None without a bill."""
    reasons: tuple[str, ...] = ()
    """Codes of doubts."""
    notes: tuple[str, ...] = ()


class PromptHabits(NamedTuple):
    """What a provider does to every prompt."""

    offset: int = 0
    """Billed minus rendered tokens on most of its rows."""
    supported: frozenset[str] = frozenset()
    """Readings that its bills support where they tell them from the template's prompt."""
    refuted: frozenset[str] = frozenset()
    """Readings that its bills refute."""
    unexplained: bool = False
    """True when no reading explains most of its other bills: then one that explains a row does so by chance."""


NO_HABITS = PromptHabits()


def learn_prompts(deltas: Counter[int], support: Counter[str], refutation: Counter[tuple[str, int]]) -> PromptHabits:
    """Return a provider's habits from its rows.

    Args:
        deltas: billed minus rendered tokens of the rows that no other reading explains.
        support: rows by reading whose bill is that of the reading and not that of the template's prompt.
        refutation: rows by reading, and by their difference, whose bill is then not that of the reading.

    """
    offset = min(deltas, key=lambda delta: (-deltas[delta], abs(delta)), default=0)
    is_constant = deltas[offset] >= max(MIN_SAME, SAME_SHARE * deltas.total())
    usual = offset if is_constant else 0
    against = Counter({name: count for (name, delta), count in refutation.items() if delta == usual})
    explained = max(support.values(), default=0)
    return PromptHabits(
        usual,
        frozenset(name for name, count in support.items() if count > MOST_CHANCE * against[name]),
        frozenset(name for name, count in against.items() if count > MOST_CHANCE * support[name]),
        unexplained=_unexplained(deltas, usual) * MOST_CHANCE > explained,
    )


def _unexplained(deltas: Counter[int], offset: int) -> int:
    """Count the rows whose bill neither the template's prompt nor a small constant explains."""
    expected = {0, offset} & (SMALL_OFFSETS | {0})
    return sum(count for delta, count in deltas.items() if delta not in expected)


def weigh(
    plain: list[int], billed: int, render: Render, conversation: Conversation
) -> tuple[list[str], list[tuple[str, int]]]:
    """Return the readings that a bill supports, and those that it refutes where the provider has the row's offset.

    A reading with as many tokens as the template's prompt is neither.
    """
    supported: list[str] = []
    refuted: list[tuple[str, int]] = []
    delta = billed - len(plain)
    for name, read in _readings(conversation):
        ids = _rendered(render, read)
        if ids is None or len(ids) == len(plain):
            continue
        if len(ids) == billed:
            supported.append(name)
        if delta in SMALL_OFFSETS | {0}:
            refuted.append((name, delta))
    return supported, refuted


def read_prompt(
    plain: list[int], billed: int | None, habits: PromptHabits, render: Render, conversation: Conversation
) -> PromptReading:
    """Return the prompt that the bill supports.

    Args:
        plain: ids of the conversation as the template renders it.
        billed: prompt tokens that the server counted; None if it gave no count.
        habits: of the provider.
        render: renders a conversation; raises InputError.
        conversation: the messages, tools and mode of `plain`.

    """
    if not billed:
        return PromptReading(plain, "text", None)
    delta = billed - len(plain)
    is_usual = delta == habits.offset and delta in SMALL_OFFSETS
    if delta == 0 or is_usual:
        return _with_usual_bill(plain, delta, habits, render, conversation)
    found = [] if habits.unexplained else explanations(billed, render, conversation)
    found = [(name, ids) for name, ids in found if not habits.refuted & set(name.split(" + "))]
    known = [(name, ids) for name, ids in found if habits.supported.issuperset(name.split(" + "))]
    by_ids = {tuple(ids): name for name, ids in reversed(known or found)}
    if len(by_ids) == 1:
        ((ids, name),) = by_ids.items()
        return PromptReading(list(ids), "count", 0, (), (f"prompt_reading: {name}",))
    if by_ids:
        return _ambiguous(plain, delta, by_ids.values())
    is_hidden = delta == habits.offset and delta > 0
    notes = (f"prompt_has_hidden_text: {delta:+d} on most of the provider's rows",) if is_hidden else ()
    return PromptReading(plain, "text", delta, ("prompt_count_mismatch",), notes)


def _with_usual_bill(
    plain: list[int], delta: int, habits: PromptHabits, render: Render, conversation: Conversation
) -> PromptReading:
    """Return the prompt of a row with the bill of the template's prompt; another reading may have the same count."""
    notes = (f"prompt_offset: {delta:+d} on the provider's rows",) if delta else ()
    rivals = {
        tuple(ids): name
        for name, read in _readings(conversation)
        if name != "thinking_off"
        and name not in habits.refuted  # the two modes of thinking differ in their counts
        and (ids := _rendered(render, read)) is not None
        and ids != plain
        and len(ids) == len(plain)
    }
    if not rivals:
        return PromptReading(plain, "count", delta, (), notes)
    known = {ids: name for ids, name in rivals.items() if name in habits.supported}
    if len(known) == 1:
        ((rival, name),) = known.items()
        return PromptReading(list(rival), "count", delta, (), (*notes, f"prompt_reading: {name}"))
    return _ambiguous(plain, delta, ["as_sent", *rivals.values()])


def _ambiguous(plain: list[int], delta: int, names: Iterable[str]) -> PromptReading:
    doubt = f"prompt_ambiguous: {', '.join(sorted(set(names)))} have the billed count"
    return PromptReading(plain, "text", delta, ("prompt_ambiguous",), (doubt,))


def explanations(billed: int, render: Render, conversation: Conversation) -> list[tuple[str, list[int]]]:
    """Return the readings that have the billed count, by name, those of one habit before those of two."""
    singles: list[tuple[str, list[int]]] = []
    seen: set[str] = set()
    for name, read in _readings(conversation):
        ids = _rendered(render, read)
        if ids is None or (key := repr(ids)) in seen:
            continue
        seen.add(key)
        singles.append((name, ids))
    met = [(name, ids) for name, ids in singles if len(ids) == billed]
    if met:
        return met
    pairs = []
    for (first, change), (second, other) in combinations(_CHANGES, 2):
        once = change(conversation)
        twice = None if once is None else other(once)
        ids = None if twice is None else _rendered(render, twice)
        if ids is not None and len(ids) == billed:
            pairs.append((f"{first} + {second}", ids))
    return pairs


def _rendered(render: Render, conversation: Conversation) -> list[int] | None:
    try:
        return render(*conversation)
    except InputError:
        return None


def _readings(conversation: Conversation) -> Iterator[tuple[str, Conversation]]:
    for name, change in _CHANGES:
        changed = change(conversation)
        if changed is not None:
            yield name, changed


def _messages(
    change: Callable[[dict[str, Any]], dict[str, Any] | None],
) -> Callable[[Conversation], Conversation | None]:
    """Make a change of a conversation from one of a message, which returns None to drop it."""

    def changed(conversation: Conversation) -> Conversation | None:
        messages, tools, thinking = conversation
        read = [message for message in map(change, messages) if message is not None]
        return None if read == messages or not read else (read, tools, thinking)

    return changed


def _redumped(**options: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Write the arguments of earlier calls anew, as a server does that loads them for the template."""

    def change(message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls")
        if not isinstance(calls, list):
            return message
        return {**message, "tool_calls": [_with_arguments(call, options) for call in calls]}

    return change


def _with_arguments(call: Any, options: dict[str, Any]) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments, str | dict):
        return call
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(value, **options)}}


def _without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    names = ("reasoning", "reasoning_content", "reasoning_details")
    return {key: value for key, value in message.items() if key not in names}


def _parts_joined(separator: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if not isinstance(content, list) or any(part.get("type") != "text" for part in content):
            return message
        return {**message, "content": separator.join(part["text"] for part in content)}

    return change


def _composed(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, list):
        return [_composed(item) for item in value]
    return {key: _composed(item) for key, item in value.items()} if isinstance(value, dict) else value


def _stripped(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": content.strip()} if isinstance(content, str) else message


def _without_tools(conversation: Conversation) -> Conversation | None:
    messages, tools, thinking = conversation
    return (messages, None, thinking) if tools else None


def _thinking_off(conversation: Conversation) -> Conversation | None:
    messages, tools, thinking = conversation
    return (messages, tools, False) if thinking is not False else None


def _systems_in_front(conversation: Conversation) -> Conversation | None:
    messages, tools, thinking = conversation
    systems = [message["content"] for message in messages if message["role"] == "system"]
    if len(systems) < 2 and not any(message["role"] == "system" for message in messages[1:]):
        return None
    if not all(isinstance(text, str) for text in systems):
        return None
    rest = [message for message in messages if message["role"] != "system"]
    return ([{"role": "system", "content": "\n\n".join(systems)}, *rest], tools, thinking)


_CHANGES: tuple[tuple[str, Callable[[Conversation], Conversation | None]], ...] = (
    ("thinking_off", _thinking_off),
    ("arguments_spaced", _messages(_redumped(ensure_ascii=False))),
    ("arguments_spaced_ascii", _messages(_redumped())),
    ("arguments_compact", _messages(_redumped(ensure_ascii=False, separators=(",", ":")))),
    ("reasoning_dropped", _messages(_without_reasoning)),
    ("tools_dropped", _without_tools),
    ("parts_by_line", _messages(_parts_joined("\n"))),
    ("parts_by_nothing", _messages(_parts_joined(""))),
    ("parts_by_space", _messages(_parts_joined(" "))),
    ("developer_dropped", _messages(lambda message: None if message["role"] == "developer" else message)),
    (
        "developer_as_system",
        _messages(lambda message: {**message, "role": "system"} if message["role"] == "developer" else message),
    ),
    ("systems_in_front", _systems_in_front),
    ("composed", _messages(_composed)),
    ("texts_stripped", _messages(_stripped)),
)
"""Habits of servers, each as a change of the conversation; None where it changes nothing."""
