"""The time that a server asks to wait, read from headers and body. Pure."""

import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any


def asked_wait(headers: Mapping[str, str], error: Mapping[str, Any], now: float) -> float | None:
    """Return the seconds that the server asks to wait, or None.

    Sources, in this order: `Retry-After` (seconds or a date), the error's body, the reset of a spent rate limit.
    ``now`` is the time as seconds since the epoch.
    """
    for seconds in (
        _retry_after(headers.get("retry-after"), headers.get("date"), now),
        _from_body(error),
        _reset(headers, now),
    ):
        if seconds is not None:
            return seconds
    return None


def _retry_after(value: str | None, date: str | None, now: float) -> float | None:
    if value is None:
        return None
    if (seconds := _number(value)) is not None:
        return max(0.0, seconds)
    until, server_now = _moment(value), _moment(date) if date else None
    return None if until is None else max(0.0, until - (now if server_now is None else server_now))


def _from_body(error: Mapping[str, Any]) -> float | None:
    availability = error.get("availability")
    metadata = error.get("metadata")
    for place, name in ((availability, "retry_after"), (metadata, "retry_after"), (metadata, "retry_after_seconds")):
        if isinstance(place, Mapping) and (seconds := _number(place.get(name))) is not None:
            return max(0.0, seconds)
    return None


def _reset(headers: Mapping[str, str], now: float) -> float | None:
    """Read `X-RateLimit-Reset` (epoch in seconds or milliseconds), which counts only when nothing remains."""
    if headers.get("x-ratelimit-remaining") != "0":
        return None
    reset = _number(headers.get("x-ratelimit-reset"))
    if reset is None:
        return None
    moment = reset / 1000 if reset > 1e11 else reset
    return max(0.0, moment - now if moment > 1e9 else moment)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _moment(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
