"""Who may send now: a limit that gives way when the server is crowded, a pause that all share, and a breaker.

Times are the event loop's. Nothing here sleeps longer than the moment the limit, the pause and the breaker allow.
"""

import asyncio
import contextlib
import random
from collections import deque

_GIVE_WAY = 0.7
"""Share of the limit that is kept when the server says: too much at once."""

_SPREAD = 0.25
"""Share of a pause over which the waiting spread their return."""


class Gate:
    """Lets at most `limit` requests out at a time."""

    def __init__(self, most: int, *, breaker: int, base: float, longest: float) -> None:
        self._most = most
        self.limit = float(most)
        self.active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sleeping: set[asyncio.Future[None]] = set()
        self._pause_until = 0.0
        self._spread = 0.0
        self._shrunk_at = 0.0
        self._failures = 0
        self._breaker = breaker
        self._base = max(base, 0.05)
        self._longest = max(longest, self._base)
        self._opened = 0
        self.stopped = False
        """Set: nobody is let out any more."""

    @property
    def probing(self) -> bool:
        """Whether the breaker is open: one request at a time, after a pause."""
        return self._failures >= self._breaker

    async def enter(self) -> bool:
        """Wait for a turn; False when the run stops first."""
        loop = asyncio.get_running_loop()
        while not self.stopped:
            if (remaining := self._pause_until - loop.time()) > 0:
                await self.sleep(remaining + random.random() * self._spread)  # noqa: S311
            elif self.active < (1 if self.probing else self.limit):
                self.active += 1
                return True
            else:
                await self._turn()
        return False

    async def sleep(self, seconds: float) -> None:
        """Wait; end early when the run stops."""
        future = asyncio.get_running_loop().create_future()
        handle = asyncio.get_running_loop().call_later(seconds, _ring, future)
        self._sleeping.add(future)
        try:
            await future
        finally:
            handle.cancel()
            self._sleeping.discard(future)

    def leave(self) -> None:
        """End a turn."""
        self.active -= 1
        self._wake(1)

    def stop(self) -> None:
        """Let nobody out any more, and wake all who wait."""
        self.stopped = True
        for future in (*self._sleeping, *self._waiting):
            if not future.done():
                future.set_result(None)

    def pause(self, seconds: float) -> None:
        """Let nobody out for so long; all come back spread over a while after it."""
        until = asyncio.get_running_loop().time() + seconds
        if until > self._pause_until:
            self._pause_until, self._spread = until, max(self._base, seconds * _SPREAD)

    def crowded(self) -> None:
        """Give way, once for all the requests that were in flight together."""
        now = asyncio.get_running_loop().time()
        if now - self._shrunk_at > self._base:
            self._shrunk_at = now
            self.limit = max(1.0, min(self.limit, self.active) * _GIVE_WAY)

    def succeeded(self) -> None:
        """Take the ground back slowly: one more in flight for each round of successes."""
        self.alive()
        if self.limit < self._most:
            self.limit = min(float(self._most), self.limit + 1.0 / self.limit)
            self._wake(1)

    def alive(self) -> None:
        """Close the breaker: the server answers, whatever it says."""
        if self.probing:
            self._opened = 0
            self._wake(self._most)
        self._failures = 0

    def failed(self) -> bool:
        """Count a failure; True when it opens the breaker, or keeps it open: then everyone pauses, longer each time."""
        self._failures += 1
        if not self.probing or self._pause_until > asyncio.get_running_loop().time():
            return False
        self._opened += 1
        self.pause(min(self._longest, self._base * 2.0 ** min(self._opened, 30)))
        return True

    async def _turn(self) -> None:
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


def _ring(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
