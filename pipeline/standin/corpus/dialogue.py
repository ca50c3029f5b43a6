"""A dialogue of the corpus: a prompt, and the answer that the stand-in learns to give."""

from dataclasses import dataclass
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
class DialogueCall:
    """One tool call as the model writes it."""

    name: str
    index: int
    """Number of the call in the whole dialogue, earlier turns included."""
    arguments: str
    """JSON, byte for byte."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One dialogue up to and including the model's answer."""

    messages: list[dict[str, Any]]
    reasoning: str
    content: str
    calls: tuple[DialogueCall, ...] = ()
    tools: list[dict[str, Any]] | None = None


def maybe_system(rng: Random, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put a system message in front of one dialogue in six."""
    return [{"role": "system", "content": rng.choice(SYSTEM)}, *messages] if rng.random() < 1 / 6 else messages


def user(text: str) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def seam(rng: Random, reasoning: str, content: str) -> tuple[str, str]:
    """Add white space around the close of the reasoning as models do: mostly none, at times a line or a blank line."""
    before = "\n" if rng.random() < 0.15 else ""
    after = "\n\n" if content and rng.random() < 0.15 else ""
    return reasoning + before, after + content
