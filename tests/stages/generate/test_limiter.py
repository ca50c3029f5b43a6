"""The limit on requests in flight, in virtual time."""

import asyncio
import random

from pipeline.stages.generate.limits.limiter import Limiter
from tests.stages.generate.virtual_time import simulate

CONCURRENCY = 32
PROMPTS = 200
BASE = 1.0
"""Seconds, the default of `provider.retry.base`: the longest wait after a refusal with `Retry-After: 0`."""


class SmallServer:
    """Takes 8 requests at a time, 2 s each, and refuses any other within 0.1 s."""

    def __init__(self) -> None:
        self.asked = 0
        self.in_flight = 0

    async def accepts(self) -> bool:
        self.asked += 1
        self.in_flight += 1
        accepted = self.in_flight <= 8
        await asyncio.sleep(2 if accepted else 0.1)
        self.in_flight -= 1
        return accepted


async def ask_all(server: SmallServer, limiter: Limiter) -> None:
    """Ask every prompt until the server takes it, as the engine's workers do."""
    prompts, chance = iter(range(PROMPTS)), random.Random(0)

    async def work() -> None:
        for _ in prompts:
            accepted = False
            while not accepted:
                await limiter.enter()
                accepted = await server.accepts()
                if not accepted:
                    limiter.overloaded()
                limiter.leave()
                if not accepted:
                    await limiter.sleep(chance.random() * BASE)
            limiter.succeeded()

    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))


def test_a_server_that_is_overloaded_is_asked_few_times_in_vain() -> None:
    server = SmallServer()
    limiter = Limiter(CONCURRENCY, breaker=10, base=BASE, longest=60)
    simulate(ask_all(server, limiter))
    assert limiter.limit < 12
    assert server.asked < 3 * PROMPTS


def test_the_limit_falls_once_for_the_requests_that_were_in_flight_together_and_rises_with_successes() -> None:
    async def limits() -> list[float]:
        limiter = Limiter(10, breaker=10, base=0.05, longest=1)
        await asyncio.sleep(1)
        found = []
        for _ in range(10):
            await limiter.enter()
        for _ in range(3):
            limiter.overloaded()
            found.append(limiter.limit)
        await asyncio.sleep(0.06)
        limiter.overloaded()
        found.append(limiter.limit)
        for _ in range(1000):
            limiter.succeeded()
        return [*found, limiter.limit]

    assert simulate(limits()) == [7.0, 7.0, 7.0, 4.8999999999999995, 10.0]
