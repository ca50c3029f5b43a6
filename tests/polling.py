"""Polling of other processes and threads: wait until a condition holds, instead of for a fixed time."""

import time
from collections.abc import Callable
from pathlib import Path

TIMEOUT_S = 120.0
"""Seconds after which a test fails; even on a busy machine only a fault takes this long."""


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds; fail after `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {TIMEOUT_S:g} s"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie.

    A process that ends during the check counts as gone: its file may still exist while reading it fails.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
