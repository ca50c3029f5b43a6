"""Work for several processes, answered in order: how many are worth starting, and what to say when one dies."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import TypeVar

from pipeline.core.errors import AerieError

_FAR = 16
"""Items among which two must need work for a pool to be started; as many are held in memory at most."""

Beside = TypeVar("Beside")
Item = TypeVar("Item")
Result = TypeVar("Result")


def processes_for(size: int, *, worth: int, most: int | None = None) -> int:
    """Processes for an input of ``size`` bytes: one where it is below ``worth``, else one a core, at most ``most``."""
    if size < worth:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min(cores, most) if most is not None else cores


def where_needed(
    pool: Executor | None, work: Callable[[Item], Result], items: Iterable[tuple[Beside, Item | None]], ahead: int
) -> Iterator[tuple[Beside, Result | None]]:
    """Results in the order of the items, with at most ``ahead`` of them waiting: memory does not grow with the input.

    Items are pairs: the first is handed through, and a second of None needs no work. Without a pool the work is done here; with one too when the
    second item that needs work is far from the first, since no process is worth starting for it.

    Raises:
        AerieError: a process died.

    """
    items = iter(items)
    held: list[tuple[Beside, Item | None]] = []
    for pair in items if pool is not None else ():
        if pair[1] is None:
            yield pair[0], None
            continue
        held.append(pair)
        for other in islice(items, _FAR):
            held.append(other)
            if other[1] is not None:
                break
        else:
            pool = None
        break
    yield from _worked(pool, work, chain(held, items), ahead)


def _worked(
    pool: Executor | None, work: Callable[[Item], Result], items: Iterable[tuple[Beside, Item | None]], ahead: int
) -> Iterator[tuple[Beside, Result | None]]:
    """As `where_needed`, in the pool, or here where there is none."""
    waiting: deque[tuple[Beside, Future[Result] | None]] = deque()

    def next_one() -> tuple[Beside, Result | None]:
        beside, future = waiting.popleft()
        return beside, None if future is None else future.result()

    try:
        for beside, item in items:
            if item is None or pool is not None:
                waiting.append((beside, None if item is None else pool.submit(work, item)))  # type: ignore[union-attr]
            else:
                yield beside, work(item)
            while waiting and (len(waiting) > ahead or waiting[0][1] is None):
                yield next_one()
        while waiting:
            yield next_one()
    except BrokenProcessPool as error:
        raise AerieError(
            f"a worker process died: out of memory, or killed? One process alone needs less ({error})"
        ) from error
