"""Process pools: results in the order of the items, in as many processes as pay off."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import TypeVar

from pipeline.core.errors import AerieError

_LOOKAHEAD = 16
"""Items read ahead for a second one that needs work; without one, no process is started for the first."""

Extra = TypeVar("Extra")
Item = TypeVar("Item")
Result = TypeVar("Result")


def processes_for(size: int, *, worth: int, most: int | None = None) -> int:
    """Return the number of processes for an input of ``size`` bytes.

    One process below ``worth`` bytes; else one per core, at most ``most``.
    """
    if size < worth:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min(cores, most) if most is not None else cores


def where_needed(
    pool: Executor | None, work: Callable[[Item], Result], items: Iterable[tuple[Extra, Item | None]], ahead: int
) -> Iterator[tuple[Extra, Result | None]]:
    """Give results in the order of the items, with at most ``ahead`` of them pending: memory does not grow.

    An item is a pair. The first part is passed through; a second part of None needs no work. Without a pool the work is
    done in this process. So it is with a pool when fewer than two of `_LOOKAHEAD` items need work, since starting a
    process would cost more than it saves.

    Raises:
        AerieError: a process died.

    """
    items = iter(items)
    buffer: list[tuple[Extra, Item | None]] = []
    for pair in items if pool is not None else ():
        if pair[1] is None:
            yield pair[0], None
            continue
        buffer.append(pair)
        for other in islice(items, _LOOKAHEAD):
            buffer.append(other)
            if other[1] is not None:
                break
        else:
            pool = None
        break
    yield from _results(pool, work, chain(buffer, items), ahead)


def _results(
    pool: Executor | None, work: Callable[[Item], Result], items: Iterable[tuple[Extra, Item | None]], ahead: int
) -> Iterator[tuple[Extra, Result | None]]:
    """As `where_needed`, in the pool, or in this process where there is none."""
    pending: deque[tuple[Extra, Future[Result] | None]] = deque()

    def next_result() -> tuple[Extra, Result | None]:
        extra, future = pending.popleft()
        return extra, None if future is None else future.result()

    try:
        for extra, item in items:
            if item is None or pool is not None:
                pending.append((extra, None if item is None else pool.submit(work, item)))  # type: ignore[union-attr]
            else:
                yield extra, work(item)
            while pending and (len(pending) > ahead or pending[0][1] is None):
                yield next_result()
        while pending:
            yield next_result()
    except BrokenProcessPool as error:
        raise AerieError(
            f"a worker process died: out of memory, or killed? One process alone needs less ({error})"
        ) from error
