"""Work for several processes."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import pytest

from pipeline.core.process.pools import where_needed


def whose(number: int) -> tuple[int, int]:
    """Number, and who worked on it."""
    return number, os.getpid()


@pytest.mark.parametrize(
    ("needed", "elsewhere"),
    [
        ([], False),
        ([3], False),
        ([0, 1], True),
        ([5, 21], True),
        ([5, 22, 23], False),
        ([0, 40, 41], False),
        (range(60), True),
    ],
)
def test_processes_are_started_where_two_pieces_of_work_are_near(needed: Sequence[int], elsewhere: bool) -> None:
    items = [(number, number if number in needed else None) for number in range(60)]
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        found = list(where_needed(pool, whose, items, 2))
        assert [beside for beside, _ in found] == list(range(60))
        assert [number for number, result in found if result is not None] == list(needed)
    assert {result[1] != os.getpid() for _, result in found if result is not None} <= {elsewhere}
    assert list(where_needed(None, whose, items, 2)) == [
        (number, None if item is None else (item, os.getpid())) for number, item in items
    ]
