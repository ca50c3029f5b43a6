"""JSON whose whole numbers stay what they are: beyond 64 bits the fast parser makes floats of them, in silence. Pure."""

import json
import re
from typing import Any

import orjson

from pipeline.core.errors import InputError

_LONG = re.compile(rb"\d{19}")


def exact_json(text: bytes) -> Any:
    """Parse a JSON text.

    Raises:
        JSONDecodeError: it is none.
        InputError: a whole number in it does not fit 64 bits.

    """
    value = orjson.loads(text)
    if _LONG.search(text):
        json.loads(text, parse_int=_checked)
    return value


def _checked(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise InputError(
            f"the number {digits[:40]} does not fit 64 bits, and would be sent as another one; write it as a text, or as {float(digits[:300]):.6g}"
        )
    return 0
