"""Garbage collection of reference cycles, paused while long-lived objects are made."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Pause the cycle collector, which would search many new long-lived objects repeatedly and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
