"""Waiting for what other processes and threads do: until it has come to pass, and not for a time in which it should have."""

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 120.0
"""Seconds after which nothing more is expected, on the busiest machine: only a fault takes so long."""


def until(condition: Callable[[], bool]) -> None:
    """Look again and again until it holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"it did not come to pass in {PATIENCE:g} s"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie. One that ends while it is looked at is gone: its file may be there, and not be read any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
