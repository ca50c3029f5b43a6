"""Caps on spending.

A request is sent only when its worst case fits under every cap, whatever else is in flight.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.stages.generate.config import BudgetSection
from pipeline.stages.generate.ledger.records import NO_CHARGE, Charge
from pipeline.stages.generate.limits.money import to_pico, to_usd


@dataclass(slots=True)
class Cap:
    """One section's caps, and what counts against them: spent, uncertain, and reserved for what is in flight."""

    name: str
    section: BudgetSection
    pico: int
    """Picodollars that count by now."""
    tokens: int
    """Completion tokens that count by now."""

    def refusal(self, charge: Charge) -> str | None:
        """Return a message about the cap that the charge would pass, or None."""
        if self.section.usd is not None and self.pico + charge.pico > to_pico(self.section.usd):
            return (
                f"{self.name}.usd {self.section.usd:g}: ${to_usd(self.pico):.6f} spent or reserved, restored answers "
                f"included; the next request can cost ${to_usd(charge.pico):.6f}"
            )
        most = self.section.completion_tokens
        if most is not None and self.tokens + charge.tokens > most:
            return (
                f"{self.name}.completion_tokens {most}: {self.tokens} spent or reserved, restored answers included; "
                f"the next request can take {charge.tokens}"
            )
        return None


class Budget:
    """All caps of a run. The event loop alone decides, so nothing happens between a check and its reservation."""

    def __init__(self, caps: Iterable[Cap], excess: Charge = NO_CHARGE) -> None:
        """``excess``: most that the server is known to bill for one request beyond its reservation."""
        self._caps = tuple(caps)
        self.in_flight = 0
        self.excess = excess
        """Any request in flight may cost as much more than it reserved, and so may the next."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    def passed_cap(self, charge: Charge) -> Cap | None:
        """Return the cap that a request would pass now, or None."""
        most = self._at_most(charge)
        return next((cap for cap in self._caps if cap.refusal(most)), None)

    def refusal(self, charge: Charge) -> str | None:
        """Return a message about the cap that a request would pass now, or None."""
        most = self._at_most(charge)
        message = next((message for cap in self._caps if (message := cap.refusal(most))), None)
        if message is None or self.excess == NO_CHARGE:
            return message
        return (
            f"{message}; this server has billed up to {self.excess.tokens} tokens and ${to_usd(self.excess.pico):.6f} "
            "more than a request could cost by its max_tokens and the listed prices"
        )

    def learn(self, excess: Charge) -> bool:
        """Take note of a bill beyond a reservation; return whether it is the largest so far."""
        largest = self.excess.most(excess)
        grows = largest != self.excess
        self.excess = largest
        return grows

    def overdrawn(self) -> bool:
        """Return whether what is in flight could pass a cap, now that the server's bills are known."""
        most = Charge(self.excess.pico * self.in_flight, self.excess.tokens * self.in_flight)
        return self.excess != NO_CHARGE and any(cap.refusal(most) for cap in self._caps)

    def _at_most(self, charge: Charge) -> Charge:
        requests = self.in_flight + 1
        return Charge(charge.pico + self.excess.pico * requests, charge.tokens + self.excess.tokens * requests)

    def reserve(self, charge: Charge) -> bool:
        """Reserve the worst case of a request; return whether it fits."""
        if self.passed_cap(charge) is not None:
            return False
        self._add(charge.pico, charge.tokens)
        self.in_flight += 1
        self.wake(1)  # there may be room for another request
        return True

    def settle(self, reserved: Charge, charged: Charge) -> None:
        """Replace what a request had reserved by what it is charged."""
        self._add(charged.pico - reserved.pico, charged.tokens - reserved.tokens)
        self.in_flight -= 1
        self.wake(1)

    async def settlement(self) -> None:
        """Wait until a request settles and this waiter is next: that may have freed room."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def wake(self, count: int | None = None) -> None:
        """Let ``count`` waiters try again, or all.

        A settlement does not wake all of them, since thousands may wait at the edge of a cap.
        """
        left = len(self._waiting) if count is None else count
        while left > 0 and self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                left -= 1

    def _add(self, pico: int, tokens: int) -> None:
        for cap in self._caps:
            cap.pico += pico
            cap.tokens += tokens
