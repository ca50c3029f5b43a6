"""The limit on requests in flight, with a shared pause and a circuit breaker.

The limit falls when the server says that it is overloaded, and rises slowly with successes. Times are the event
loop's, in seconds.
"""

import asyncio
import contextlib
import random
from collections import deque

_DECREASE = 0.7
"""Factor of the limit when the server says that too much is in flight."""

_SPREAD = 0.25
"""Share of a pause over which the waiters spread their return."""

_LEAST_BASE = 0.05
"""Least seconds between two decreases, and least pause of the circuit breaker."""


class Limiter:
    """Lets at most `limit` requests be in flight at a time."""

    def __init__(self, most: int, *, breaker: int, base: float, longest: float) -> None:
        """Start at the highest limit, ``most``.

        ``breaker`` failures in a row open the breaker; its pauses last from ``base`` to ``longest`` seconds.
        """
        self._most = most
        self.limit = float(most)
        self.active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sleeping: set[asyncio.Future[None]] = set()
        self._pause_until = 0.0
        self._spread = 0.0
        self._decreased_at = 0.0
        self._failures = 0
        self._breaker = breaker
        self._base = max(base, _LEAST_BASE)
        self._longest = max(longest, self._base)
        self._pauses = 0
        self.stopped = False
        """Whether nobody may send any more."""

    @property
    def probing(self) -> bool:
        """Whether the breaker is open: one request at a time, after a pause."""
        return self._failures >= self._breaker

    async def enter(self) -> bool:
        """Wait until one more request may be sent; return False when the run stops first."""
        loop = asyncio.get_running_loop()
        while not self.stopped:
            if (remaining := self._pause_until - loop.time()) > 0:
                await self.sleep(remaining + random.random() * self._spread)  # noqa: S311
            elif self.active < (1 if self.probing else self.limit):
                self.active += 1
                return True
            else:
                await self._wait_in_line()
        return False

    async def sleep(self, seconds: float) -> None:
        """Wait; return early when the run stops."""
        future = asyncio.get_running_loop().create_future()
        handle = asyncio.get_running_loop().call_later(seconds, _resolve, future)
        self._sleeping.add(future)
        try:
            await future
        finally:
            handle.cancel()
            self._sleeping.discard(future)

    def leave(self) -> None:
        """End a request that `enter` let through."""
        self.active -= 1
        self._wake(1)

    def stop(self) -> None:
        """Let nobody send any more, and wake everyone who waits."""
        self.stopped = True
        for future in (*self._sleeping, *self._waiting):
            _resolve(future)

    def pause(self, seconds: float) -> None:
        """Let nobody send for that time; spread the return of the waiters over a while after it."""
        until = asyncio.get_running_loop().time() + seconds
        if until > self._pause_until:
            self._pause_until, self._spread = until, max(self._base, seconds * _SPREAD)

    def overloaded(self) -> None:
        """Lower the limit, once for all the requests that were in flight together."""
        now = asyncio.get_running_loop().time()
        if now - self._decreased_at > self._base:
            self._decreased_at = now
            self.limit = max(1.0, min(self.limit, self.active) * _DECREASE)

    def succeeded(self) -> None:
        """Raise the limit slowly: by one for each round of successes."""
        self.alive()
        if self.limit < self._most:
            self.limit = min(float(self._most), self.limit + 1.0 / self.limit)
            self._wake(1)

    def alive(self) -> None:
        """Close the breaker: the server answers, with whatever status."""
        if self.probing:
            self._pauses = 0
            self._wake(self._most)
        self._failures = 0

    def failed(self) -> bool:
        """Count a failure; return whether the breaker is open and a new pause begins, longer each time."""
        self._failures += 1
        if not self.probing or self._pause_until > asyncio.get_running_loop().time():
            return False
        self._pauses += 1
        self.pause(min(self._longest, self._base * 2.0 ** min(self._pauses, 30)))
        return True

    async def _wait_in_line(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):
                self._waiting.remove(future)
            raise

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
