"""Size limit of the reuse cache, from the environment."""

import os
import re

from pipeline.core.errors import ConfigError

VARIABLE = "AERIE_REUSE"
"""Environment variable: `off`, or the most bytes to keep (`500MB`, `20GiB`)."""
DEFAULT_BYTES = 8 << 30

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)


def most_bytes() -> int:
    """Return the most bytes to keep; 0 when reuse is off.

    Raises:
        ConfigError: the environment variable is neither a size nor `off`.

    """
    value = os.environ.get(VARIABLE, "").strip()
    if not value:
        return DEFAULT_BYTES
    if value.lower() in ("off", "no", "false"):
        return 0
    if (size := _SIZE.fullmatch(value)) is None:
        raise ConfigError(f"{VARIABLE}={value!r}: needs `off`, or the most bytes to keep, such as 500MB or 20GiB")
    return int(float(size[1]) * _UNITS[(size[2] or "").lower()])
