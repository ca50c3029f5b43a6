"""Deterministic algorithms of torch, for the duration of a block."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def deterministic(*, warn_only: bool = False) -> Iterator[None]:
    """Make torch refuse operations that may give other bits on a second run; the earlier setting is restored.

    With ``warn_only`` torch only warns about them.
    """
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
