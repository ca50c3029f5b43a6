"""The providers' latencies, from timings.jsonl, the only file of a build that has them."""

from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import InputError
from pipeline.core.files.jsonl import read_jsonl

Latencies = dict[str, NDArray[np.float64]]
"""Milliseconds of each answer whose time is known, by provider."""


def read_latencies(path: Path) -> Latencies:
    """Read the latencies in a timings.jsonl.

    Raises:
        InputError: the file is missing, or a line is not a JSON object; the message has the line's number.

    """
    found: dict[str, array[float]] = {}
    for number, line in read_jsonl(path):
        if not isinstance(line, dict):
            raise InputError(
                f"{path}:{number}: needed is an object with `provider` and `seconds`; found {str(line)[:80]!r}"
            )
        provider, seconds = line.get("provider"), line.get("seconds")
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < 1 << 53:
            found.setdefault(provider if isinstance(provider, str) and provider else "unknown", array("d")).append(
                seconds * 1000
            )
    return {name: np.array(values, dtype=np.float64) for name, values in sorted(found.items())}
