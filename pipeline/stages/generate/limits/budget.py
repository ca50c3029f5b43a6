"""What may still be spent. A request is let through only when its worst case fits under every cap, whatever else is in flight."""

import asyncio
from collections import deque
from dataclasses import dataclass

from pipeline.stages.generate.config import BudgetSection
from pipeline.stages.generate.ledger.ledger import Spending
from pipeline.stages.generate.limits.money import to_pico, to_usd


@dataclass(slots=True)
class Cap:
    """One section's caps, and what counts against them: spent, uncertain, and reserved for what is in flight."""

    name: str
    section: BudgetSection
    pico: int
    tokens: int

    def refuses(self, pico: int, tokens: int) -> str | None:
        """Say which cap the amounts would pass, or None."""
        if self.section.usd is not None and self.pico + pico > to_pico(self.section.usd):
            return f"{self.name}.usd {self.section.usd:g}: ${to_usd(self.pico):.6f} spent or reserved, restored answers included; the next request can cost ${to_usd(pico):.6f}"
        most = self.section.completion_tokens
        if most is not None and self.tokens + tokens > most:
            return f"{self.name}.completion_tokens {most}: {self.tokens} spent or reserved, restored answers included; the next request can take {tokens}"
        return None


class Budget:
    """All caps of a run. Decisions are made on the event loop alone, so none can slip between a check and its reservation."""

    def __init__(
        self, dataset: BudgetSection, build: BudgetSection, spent_dataset: Spending, spent_build: Spending
    ) -> None:
        self._caps = (
            Cap("dataset budget", dataset, spent_dataset.pico, spent_dataset.tokens),
            Cap("build budget", build, spent_build.pico, spent_build.tokens),
        )
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def refusal(self, pico: int, tokens: int) -> Cap | None:
        """Cap that a request would pass now, or None."""
        return next((cap for cap in self._caps if cap.refuses(pico, tokens)), None)

    def reserve(self, pico: int, tokens: int) -> bool:
        """Take the worst case of a request, if it fits."""
        if self.refusal(pico, tokens) is not None:
            return False
        self._add(pico, tokens)
        self.in_flight += 1
        self.wake(1)  # there may be room for one more
        return True

    def settle(self, reserved: tuple[int, int], charged: tuple[int, int]) -> None:
        """Replace what a request had reserved by what it is charged."""
        self._add(charged[0] - reserved[0], charged[1] - reserved[1])
        self.in_flight -= 1
        self.wake(1)

    async def settlement(self) -> None:
        """Wait until a request settles and this one is next: that may have freed room."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def wake(self, count: int | None = None) -> None:
        """Let some who wait for room try again, or all: not all at each settlement, since thousands may wait at the edge of a cap."""
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
