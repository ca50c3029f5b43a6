"""JSON with exact whole numbers: the fast parser silently turns those beyond 64 bits into floats. Pure."""

import json
import re
from typing import Any

import orjson

from pipeline.core.errors import InputError

_LONG = re.compile(rb"\d{19}")


def exact_json(text: bytes) -> Any:
    """Parse a JSON text.

    Raises:
        JSONDecodeError: the text is not JSON.
        InputError: a whole number in it does not fit 64 bits.

    """
    value = orjson.loads(text)
    if _LONG.search(text):
        json.loads(text, parse_int=_check_integer)
    return value


def _check_integer(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise InputError(
            f"the number {digits[:40]} does not fit 64 bits, and would be sent as another number; write it as a text, "
            f"or as {float(digits[:300]):.6g}"
        )
    return 0
