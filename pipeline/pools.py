"""Work for several processes, answered in order: how many are worth starting, and what to say when one dies."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from pipeline.errors import AerieError

Item = TypeVar("Item")
Result = TypeVar("Result")


def processes_for(size: int, *, worth: int, most: int | None = None) -> int:
    """Processes for an input of ``size`` bytes: one where it is below ``worth``, else one a core, at most ``most``."""
    if size < worth:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min(cores, most) if most is not None else cores


def in_order(pool: ProcessPoolExecutor, work: Callable[[Item], Result], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """Results in the order of the items, with at most ``ahead`` of them waiting: memory does not grow with the input.

    Raises:
        AerieError: a process died.

    """
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise AerieError(f"a worker process died: out of memory, or killed? One process alone needs less ({error})") from error
