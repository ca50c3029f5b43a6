"""The depth of JSON: recursion over a deeper value fails, sooner or later by where it is called from."""

from typing import Any

DEEPEST = 100
"""Arrays and objects inside one another that are still read; real lines have some ten."""


def nested_too_deeply(text: bytes, value: Any) -> bool:
    """Return whether a parsed text is deeper than `DEEPEST`."""
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
