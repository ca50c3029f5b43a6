"""Lines to record batches, in order: in this process, or on all cores when there is enough to do.

The result does not depend on the number of processes: batches are cut by lines alone.
"""

import contextlib
import gc
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from typing import NamedTuple

import orjson
import pyarrow as pa

from pipeline.answers.habits import SAMPLE_ROWS, Habits, Seen, learn
from pipeline.answers.lines import Job
from pipeline.answers.rows import RowMaker
from pipeline.pools import in_order, processes_for
from pipeline.reconstruct.columns import record_batch
from pipeline.reconstruct.summary import Tally
from pipeline.runner import follow_parent
from pipeline.schema.tokens import SCHEMA

BATCH_LINES = 256
PARALLEL_FROM = 4 << 20
"""Bytes of input from which starting processes pays."""

Line = tuple[int, bytes | None, bytes | None]
"""(number, line of responses or None, line of prompts or None)."""

Source = Callable[[], Iterator[Line]]
"""Gives the lines from the start, as often as asked."""

ToJob = Callable[[Line], Job]


class Plan(NamedTuple):
    """All that a worker needs."""

    maker: RowMaker
    to_job: ToJob
    habits: dict[str | None, Habits]


def learn_habits(lines: Iterable[Line], maker: RowMaker, to_job: ToJob) -> dict[str | None, Habits]:
    """First pass: habits of each provider, from its first rows."""
    seen: dict[str | None, Seen] = {}
    known: tuple[bytes, ...] = ()
    for line in lines:
        if any(mark in (line[1] or b"") for mark in known):
            continue
        maker.observe(to_job(line), seen, SAMPLE_ROWS)
        known = tuple(mark for name, counts in seen.items() if name and counts.rows >= SAMPLE_ROWS for mark in _marks(name))
    return learn(seen)


def _marks(provider: str) -> tuple[bytes, bytes]:
    """How a line names its provider, so that lines of one who is known well enough need not be parsed."""
    name = orjson.dumps(provider)
    return b'"provider":' + name, b'"provider": ' + name


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Switch the cycle collector off: rows are trees, and looking through millions of them for cycles takes a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def batches(lines: Iterator[Line], plan: Plan, tally: Tally, workers: int) -> Iterator[pa.RecordBatch]:
    """Second pass: the rows of each batch of lines, counted in `tally`."""
    chunks = iter(lambda: list(islice(lines, BATCH_LINES)), [])
    if workers <= 1:
        results: Iterator[tuple[bytes, Tally]] = (_work(plan, chunk) for chunk in chunks)
        yield from _received(results, tally)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, _start, (plan,)) as pool:
        yield from _received(in_order(pool, _run, chunks, 2 * workers), tally)


def workers_for(size: int, wanted: int | None) -> int:
    """Processes for so many bytes of input, unless the user wants another number."""
    return processes_for(size, worth=PARALLEL_FROM) if wanted is None else max(1, wanted)


def _received(results: Iterator[tuple[bytes, Tally]], tally: Tally) -> Iterator[pa.RecordBatch]:
    for buffer, counts in results:
        tally.add(counts)
        yield pa.ipc.read_record_batch(pa.py_buffer(buffer), SCHEMA)


_plan: Plan | None = None


def _start(plan: Plan) -> None:
    global _plan
    follow_parent()
    _plan = plan


def _run(chunk: list[Line]) -> tuple[bytes, Tally]:
    assert _plan is not None
    return _work(_plan, chunk)


def _work(plan: Plan, chunk: list[Line]) -> tuple[bytes, Tally]:
    with no_collector():
        rows = plan.maker.rows([plan.to_job(line) for line in chunk], plan.habits)
    tally = Tally()
    tally.take(len(chunk), rows)
    return record_batch(rows).serialize().to_pybytes(), tally
