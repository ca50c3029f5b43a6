"""What the corpus is made of: a prompt, and the answer that the stand-in learns to give."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

NAMES = (
    "Ada",
    "Ben",
    "Cara",
    "Dan",
    "Emma",
    "Finn",
    "Grace",
    "Hugo",
    "Iris",
    "Jack",
    "Kate",
    "Leo",
    "Mia",
    "Noah",
    "Olga",
    "Paul",
)
CITIES = ("Oslo", "Paris", "Rome", "Berlin", "Madrid", "Tokyo", "Lima", "Cairo", "Delhi", "Sydney", "Boston", "Vienna")
SYSTEM = ("Be brief.", "You are a helpful assistant.", "Think first, then answer.")


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call as the model writes it."""

    name: str
    index: int
    """Counts through the whole conversation, earlier turns included."""
    arguments: str
    """JSON, byte for byte."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation up to and including the model's answer."""

    messages: list[dict[str, Any]]
    reasoning: str
    content: str
    calls: tuple[Call, ...] = ()
    tools: list[dict[str, Any]] | None = field(default=None)


def maybe_system(rng: Random, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put a system message in front of one conversation in six."""
    return [{"role": "system", "content": rng.choice(SYSTEM)}, *messages] if rng.random() < 1 / 6 else messages


def user(text: str) -> dict[str, Any]:
    """One message of the user."""
    return {"role": "user", "content": text}


def seam(rng: Random, reasoning: str, content: str) -> tuple[str, str]:
    """White space around the close of the reasoning, as models write it: mostly none, at times a line or a blank line."""
    before = "\n" if rng.random() < 0.15 else ""
    after = "\n\n" if content and rng.random() < 0.15 else ""
    return reasoning + before, after + content
