"""Money as whole picodollars (1e-12 USD), whose sums are exact: prices, worst cases and real costs. Pure."""

import math
from dataclasses import dataclass

from pipeline.formats.completion.usage import Usage
from pipeline.stages.generate.config import PriceSection

PICO = 10**12
"""Picodollars in a dollar; 64 bits hold nine million dollars."""

_CHAT_TOKENS = 64
"""Most tokens that a chat template adds around a conversation, and around each message."""


def to_pico(usd: float) -> int:
    """Dollars to picodollars, rounded up."""
    return math.ceil(round(usd * PICO, 3))


def to_usd(pico: int) -> float:
    """Picodollars to dollars."""
    return pico / PICO


@dataclass(frozen=True, slots=True)
class Price:
    """Picodollars per token, and per request."""

    prompt: int = 0
    completion: int = 0
    request: int = 0

    def cost(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Return the cost of one request in picodollars."""
        return self.request + prompt_tokens * self.prompt + completion_tokens * self.completion

    def most(self, other: "Price") -> "Price":
        """Return the higher price of both for each part."""
        return Price(
            max(self.prompt, other.prompt), max(self.completion, other.completion), max(self.request, other.request)
        )


def price_of(section: PriceSection) -> Price:
    """Return the price that the configuration states in dollars per million tokens; null counts as free."""
    return Price(to_pico((section.prompt or 0) / 1e6), to_pico((section.completion or 0) / 1e6))


def most_prompt_tokens(prompt_bytes: int, messages: int) -> int:
    """Return an upper bound of a prompt's tokens: byte-level vocabularies have no token shorter than a byte."""
    return prompt_bytes + _CHAT_TOKENS * (messages + 1)


def billed_cost(usage: Usage, price: Price | None) -> int | None:
    """Return what an answer cost in picodollars; None if it cannot be known.

    The server's own number counts. Where it is missing, incomplete or not a number, price x tokens counts instead, with
    the router's fee on top; the number in a text counts only if price x tokens is unknown.
    """
    cost = usage.cost
    if cost.usd is not None:
        return to_pico(cost.usd)
    if price is not None and usage.prompt is not None and usage.completion is not None:
        return price.cost(usage.prompt, usage.completion) + to_pico(cost.fee_usd)
    return None if cost.text_usd is None else to_pico(cost.text_usd)
