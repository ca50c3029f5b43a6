"""Short descriptions of unexpected JSON values, for messages."""

import json
from typing import Any

_MOST_KEYS, _MOST_CHARACTERS = 6, 40


def describe(value: Any) -> str:
    """Describe a JSON value on one short line; the contents of an array, and the values of an object, are left out."""
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
    """Return the first characters of a text, in quotes and with escapes."""
    return json.dumps(text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}...")
