"""Dialogues with tools: one call, two calls, a call after a result, an answer from a result, or no call."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from pipeline.standin.corpus.dialogue import CITIES, NAMES, Dialogue, DialogueCall, maybe_system, seam, user


@dataclass(frozen=True, slots=True)
class Wish:
    """A user's request that one tool can serve, and the arguments of the call."""

    ask: str
    """The request in the user's words."""
    short: str
    """The same as part of a sentence."""
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Tool:
    description: str
    properties: dict[str, Any]
    required: list[str]
    wish: Callable[[Random], Wish]
    """Makes a request for this tool."""
    result: Callable[[Random], tuple[str, str]]
    """Makes the text that the tool returns, and the words in which the answer repeats it."""


_SUBJECTS = ("ferries", "museums", "trains", "parks", "hotels", "music")


def _weather(rng: Random) -> Wish:
    city = rng.choice(CITIES)
    ask = rng.choice((f"What is the weather in {city}?", f"Is it cold in {city} today?", f"How warm is it in {city}?"))
    return Wish(
        ask,
        f"the weather in {city}",
        {"city": city, **({"unit": rng.choice(("celsius", "kelvin"))} if rng.random() < 0.2 else {})},
    )


def _time(rng: Random) -> Wish:
    city = rng.choice(CITIES)
    return Wish(
        rng.choice((f"What time is it in {city}?", f"How late is it in {city} now?")),
        f"the time in {city}",
        {"city": city},
    )


def _search(rng: Random) -> Wish:
    subject, city = rng.choice(_SUBJECTS), rng.choice(CITIES)
    query = f"{subject} in {city}"
    ask = rng.choice((f"Find {query}.", f"Please search for {query}."))
    return Wish(ask, query, {"query": query, **({"limit": rng.randint(2, 9)} if rng.random() < 0.5 else {})})


def _message(rng: Random) -> Wish:
    name, text = rng.choice(NAMES), rng.choice(("I am late.", "See you soon.", "Call me.", "Dinner is ready."))
    return Wish(
        rng.choice((f'Tell {name}: "{text}"', f'Send {name} the message "{text}"')),
        f"a message to {name}",
        {"to": name, "text": text},
    )


def _timer(rng: Random) -> Wish:
    minutes = rng.randint(2, 20)
    ask = rng.choice((f"Set a timer for {minutes} minutes.", f"Wake me in {minutes} minutes."))
    return Wish(ask, f"a timer of {minutes} minutes", {"minutes": minutes})


_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}


def _weather_result(rng: Random) -> tuple[str, str]:
    text = f"{rng.randint(2, 19)} degrees, {rng.choice(('sun', 'rain', 'snow', 'wind'))}"
    return text, text


def _time_result(rng: Random) -> tuple[str, str]:
    text = f"{rng.randint(1, 19)}:{rng.choice(('00', '15', '30'))}"
    return text, text


def _search_result(rng: Random) -> tuple[str, str]:
    text = f"{rng.randint(2, 19)} results"
    return text, text


def _done(_: Random) -> tuple[str, str]:
    return "ok", "done"


_TOOLS = {
    "get_weather": _Tool("Weather of a city", {"city": _TEXT, "unit": _TEXT}, ["city"], _weather, _weather_result),
    "get_time": _Tool("Time in a city", {"city": _TEXT}, ["city"], _time, _time_result),
    "search": _Tool("Search the web", {"query": _TEXT, "limit": _NUMBER}, ["query"], _search, _search_result),
    "send_message": _Tool("Send a message", {"to": _TEXT, "text": _TEXT}, ["to", "text"], _message, _done),
    "set_timer": _Tool("Set a timer", {"minutes": _NUMBER}, ["minutes"], _timer, _done),
}


def _declare(name: str) -> dict[str, Any]:
    tool = _TOOLS[name]
    parameters = {"type": "object", "properties": tool.properties, "required": tool.required}
    return {"type": "function", "function": {"name": name, "description": tool.description, "parameters": parameters}}


def _offer(rng: Random, needed: list[str]) -> list[dict[str, Any]]:
    """Declare the tools needed and at times one more, in random order."""
    others = [name for name in _TOOLS if name not in needed]
    names = list(dict.fromkeys(needed)) + ([rng.choice(others)] if rng.random() < 0.5 else [])
    rng.shuffle(names)
    return [_declare(name) for name in names]


def _call(name: str, index: int, wish: Wish) -> DialogueCall:
    return DialogueCall(name, index, json.dumps(wish.arguments))


def _plan(rng: Random, name: str, wish: Wish) -> str:
    first = rng.choice((f"The user wants {wish.short}.", f"They ask for {wish.short}.", f"This is about {wish.short}."))
    return f"{first} {rng.choice((f'The tool {name} can do this.', f'I should call {name}.', f'I will use {name}.'))}"


def _say(rng: Random) -> str:
    return rng.choice(("Let me check.", "One moment.", "I will do that.")) if rng.random() < 0.3 else ""


def _one(rng: Random) -> Dialogue:
    name = rng.choice(list(_TOOLS))
    wish = _TOOLS[name].wish(rng)
    return Dialogue([user(wish.ask)], _plan(rng, name, wish), _say(rng), (_call(name, 0, wish),), _offer(rng, [name]))


def _two(rng: Random) -> Dialogue:
    names = [rng.choice(list(_TOOLS)) for _ in range(2)]
    wishes = [_TOOLS[name].wish(rng) for name in names]
    first, second = wishes
    thought = (
        f"There are two things to do: {first.short} and {second.short}. I will call {names[0]} and then {names[1]}."
    )
    calls = tuple(_call(name, index, wish) for index, (name, wish) in enumerate(zip(names, wishes, strict=True)))
    return Dialogue([user(f"{wishes[0].ask} {wishes[1].ask}")], thought, _say(rng), calls, _offer(rng, names))


def _history(name: str, index: int, wish: Wish, thought: str, result: str) -> list[dict[str, Any]]:
    """Return a turn that called a tool, and the tool's result."""
    call = _call(name, index, wish)
    ident = f"functions.{call.name}:{call.index}"
    return [
        user(wish.ask),
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": thought,
            "tool_calls": [{"id": ident, "type": "function", "function": {"name": name, "arguments": call.arguments}}],
        },
        {"role": "tool", "tool_call_id": ident, "content": result},
    ]


def _answered(rng: Random) -> Dialogue:
    name = rng.choice(list(_TOOLS))
    wish = _TOOLS[name].wish(rng)
    result, words = _TOOLS[name].result(rng)
    messages = _history(name, 0, wish, _plan(rng, name, wish), result)
    thought = rng.choice(
        (
            f"The tool {name} says {words}. I can answer now.",
            f"The result is {words}. No other call is needed for {wish.short}.",
        )
    )
    return Dialogue(
        messages,
        thought,
        rng.choice((f"For {wish.short}: {words}.", f"I asked for {wish.short}, and it says {words}.")),
        (),
        _offer(rng, [name]),
    )


def _again(rng: Random) -> Dialogue:
    names = [rng.choice(list(_TOOLS)) for _ in range(2)]
    first, second = (_TOOLS[name].wish(rng) for name in names)
    result, words = _TOOLS[names[0]].result(rng)
    messages = _history(names[0], 0, first, _plan(rng, names[0], first), result)
    messages += [{"role": "assistant", "content": f"For {first.short}: {words}."}, user(second.ask)]
    thought = f"{_plan(rng, names[1], second)} One call came before, so this is number 1."
    return Dialogue(messages, thought, _say(rng), (_call(names[1], 1, second),), _offer(rng, names))


def _no_call(rng: Random) -> Dialogue:
    name = rng.choice(list(_TOOLS))
    who = rng.choice(NAMES)
    ask = rng.choice((f"Thanks, {who} is happy now!", f"My name is {who}. Hello!", f"Good morning from {who}!"))
    thought = rng.choice(
        (
            f"{who} only greets me. No tool is needed here.",
            f"This is just a friendly word from {who}. I need not call {name}.",
        )
    )
    return Dialogue(
        [user(ask)],
        thought,
        rng.choice((f"Hello {who}! How can I help?", f"You are welcome, {who}!")),
        (),
        _offer(rng, [name]),
    )


def tools(rng: Random) -> Dialogue:
    """Return one dialogue of this kind; every choice comes from ``rng``."""
    dialogue = rng.choices((_one, _two, _answered, _again, _no_call), weights=(50, 18, 14, 10, 8))[0](rng)
    thought, content = seam(rng, dialogue.reasoning, dialogue.content)
    return Dialogue(maybe_system(rng, dialogue.messages), thought, content, dialogue.calls, dialogue.tools)
