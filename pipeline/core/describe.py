"""What stands in place of what is needed, for people: bounded, whatever it is."""

import json
from typing import Any

_MOST_KEYS, _MOST_CHARACTERS = 6, 40


def found(value: Any) -> str:
    """Describe a JSON value on one short line; what is inside an array or object is not looked at."""
    if isinstance(value, dict):
        keys = ", ".join(_short(str(key)) for key in list(value)[:_MOST_KEYS])
        more = f" and {len(value) - _MOST_KEYS} more" if len(value) > _MOST_KEYS else ""
        return f"an object with the keys {keys}{more}" if value else "an empty object"
    if isinstance(value, list):
        return f"an array of {len(value)}" if value else "an empty array"
    if isinstance(value, str):
        return f"the text {_short(value)}"
    return json.dumps(value)[:_MOST_CHARACTERS]


def _short(text: str) -> str:
    """Text in quotes, with escapes, cut."""
    return json.dumps(text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}...")
