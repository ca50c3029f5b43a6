"""Torch's deterministic algorithms, for as long as a stage needs them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def deterministic(*, warn_only: bool = False) -> Iterator[None]:
    """Make torch refuse (with ``warn_only`` only name) what would not give the same bits twice; afterwards it is set as before."""
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
