"""Readers of single JSON values of any type, for bodies that nobody has validated."""

import math
import re
from typing import Any

MOST_TOKENS = 10**9
"""Largest number of tokens that is believed."""

MOST_USD = 1e6
"""Dollars from which on the cost of one request is not believed."""

_WHOLE = re.compile(r"\s*(\d{1,10})(?:\.0*)?\s*", re.ASCII)
_LONGEST_NUMBER = 40


class UnusableFieldError(Exception):
    """A field has an unusable value; the arguments are the reject code and, optionally, what was found."""


def mapping(value: Any) -> dict[str, Any]:
    """Return an object as it is, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def count(value: Any) -> int | None:
    """Return a number of tokens: 12, 12.0 and "12" are 12; None for fractions, negative, huge and all other values."""
    if type(value) is not int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        elif isinstance(value, str) and (match := _WHOLE.fullmatch(value)) is not None:
            value = int(match[1])
        else:
            return None
    return value if 0 <= value <= MOST_TOKENS else None


def dollars(value: Any) -> float | None:
    """Return a JSON number of dollars that one request can have cost; None for any other value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < MOST_USD else None


def dollars_in_text(value: Any) -> float | None:
    """Return the dollars that a numeric text gives; None for any other value."""
    if not isinstance(value, str) or len(value) > _LONGEST_NUMBER:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return dollars(number) if math.isfinite(number) else None


def word(value: Any) -> str | None:
    """Return a non-empty text that can be stored, or the `type` of an object, as SGLang sends a finish reason."""
    if isinstance(value, dict):
        value = value.get("type")
    return value if isinstance(value, str) and value and is_unicode(value) else None


def is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def in_order(items: list[Any]) -> list[Any]:
    """Return choices, or calls, sorted by `index` if each has an `index` of its own; else as they came."""
    if len(items) < 2:
        return items
    places = [item.get("index") if isinstance(item, dict) else None for item in items]
    numbered = all(type(place) is int for place in places) and len(set(places)) == len(places)
    return sorted(items, key=lambda item: item["index"]) if numbered else items
