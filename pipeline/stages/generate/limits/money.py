"""Money as whole picodollars (1e-12 USD): sums are exact, so a cap is a cap. Prices, worst cases, real costs. Pure."""

import math
from dataclasses import dataclass
from typing import Any

from pipeline.stages.generate.config import PriceSection

PICO = 10**12
"""Picodollars in a dollar; 64 bits hold nine million dollars."""

_MOST_TOKENS = 10**9

_CHAT_TOKENS = 64
"""Tokens that a chat template adds around a conversation, and around each message, at most."""


def to_pico(usd: float) -> int:
    """Dollars to picodollars, rounded up."""
    return math.ceil(round(usd * PICO, 3))


def to_usd(pico: int) -> float:
    """Picodollars to dollars."""
    return pico / PICO


@dataclass(frozen=True, slots=True)
class Price:
    """Picodollars a token, and a request."""

    prompt: int = 0
    completion: int = 0
    request: int = 0

    def cost(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Cost of one request in picodollars."""
        return self.request + prompt_tokens * self.prompt + completion_tokens * self.completion

    def most(self, other: "Price") -> "Price":
        """Give the dearer of both, part by part."""
        return Price(
            max(self.prompt, other.prompt), max(self.completion, other.completion), max(self.request, other.request)
        )


def price_of(section: PriceSection) -> Price:
    """Price that the configuration states, in dollars per million tokens; null is nothing."""
    return Price(to_pico((section.prompt or 0) / 1e6), to_pico((section.completion or 0) / 1e6))


def most_prompt_tokens(prompt_bytes: int, messages: int) -> int:
    """Tokens of a prompt at most: byte-level vocabularies have no token shorter than a byte."""
    return prompt_bytes + _CHAT_TOKENS * (messages + 1)


def _count(value: Any) -> int | None:
    """Take a number of tokens that can be; more than a billion, as anything else that is none, is no count."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else None


def billed_tokens(usage: Any) -> tuple[int | None, int | None]:
    """Prompt and completion tokens by the server's own count; None where it gives none."""
    if not isinstance(usage, dict):
        return None, None
    return _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))


def billed_cost(usage: Any, price: Price | None) -> int | None:
    """What an answer cost in picodollars: `usage.cost`, else prices x usage; None when it cannot be known.

    With a key of one's own at the upstream provider, `cost` is only the router's fee, and the provider's bill comes on top.
    """
    if not isinstance(usage, dict):
        return None
    cost = amount(usage.get("cost"))
    if cost is not None:
        details = usage.get("cost_details")
        upstream = (
            amount(details.get("upstream_inference_cost"))
            if usage.get("is_byok") is True and isinstance(details, dict)
            else None
        )
        return to_pico(cost + (upstream or 0.0))
    prompt, completion = billed_tokens(usage)
    if price is None or prompt is None or completion is None:
        return None
    return price.cost(prompt, completion)


def amount(value: Any) -> float | None:
    """Take a number of dollars that one request can have cost; anything else, such as a negative one or a million, is none."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e6
    return float(value) if fine else None
