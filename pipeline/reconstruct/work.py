"""Lines to record batches, in order: in this process, or on all cores when there is enough to do.

The result does not depend on the number of processes: batches are cut by lines alone.
"""

import contextlib
import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from typing import NamedTuple

import orjson
import pyarrow as pa

from pipeline.answers.habits import SAMPLE_ROWS, Habits, Seen, learn
from pipeline.answers.lines import Job
from pipeline.answers.rows import RowMaker
from pipeline.pools import processes_for, where_needed
from pipeline.reconstruct.columns import counted, record_batch
from pipeline.reconstruct.kept import Fresh, KeptLines, Line
from pipeline.reconstruct.summary import Tally
from pipeline.reuse.rows import Found
from pipeline.runner import follow_parent, no_collector
from pipeline.schema.tokens import SCHEMA

BATCH_LINES = 256
PARALLEL_FROM = 4 << 20
"""Bytes of input from which starting processes pays."""

Source = Callable[[], Iterator[Line]]
"""Gives the lines from the start, as often as asked."""

ToJob = Callable[[Line], Job]


class Plan(NamedTuple):
    """All that a worker needs."""

    maker: RowMaker
    to_job: ToJob
    habits: dict[str | None, Habits]


def learn_habits(lines: Iterable[Line], maker: RowMaker, to_job: ToJob, kept: KeptLines | None = None) -> dict[str | None, Habits]:
    """First pass: habits of each provider, from its first rows."""
    seen: dict[str | None, Seen] = {}
    known: re.Pattern[bytes] | None = None
    for line in lines:
        if known is not None and known.search(line[1] or b""):
            continue
        if kept is None:
            maker.observe(to_job(line), seen, SAMPLE_ROWS)
        else:
            _observe(line, maker, to_job, seen, kept)
        known = _named([name for name, counts in seen.items() if name and counts.rows >= SAMPLE_ROWS])
    return learn(seen)


def _observe(line: Line, maker: RowMaker, to_job: ToJob, seen: dict[str | None, Seen], kept: KeptLines) -> None:
    """As `RowMaker.observe`, with what an earlier build saw in the same line."""
    shown = kept.seen(line)
    if shown is None:
        shown = {}
        maker.observe(to_job(line), shown, SAMPLE_ROWS)
        kept.add_seen(line, shown)
    for provider, counts in shown.items():
        own = seen.setdefault(provider, Seen())
        if own.rows < SAMPLE_ROWS:
            own.take(counts)


def _named(providers: Sequence[str]) -> re.Pattern[bytes] | None:
    """How a line names one of these providers, so that lines of those who are known well enough need not be parsed."""
    names = b"|".join(re.escape(orjson.dumps(name)) for name in providers)
    return re.compile(b'"provider": ?(?:' + names + b")") if names else None


def batches(lines: Iterator[Line], plan: Plan, tally: Tally, workers: int, kept: KeptLines | None = None) -> Iterator[pa.RecordBatch]:
    """Second pass: the rows of each batch of lines, counted in `tally`."""
    chunks = iter(lambda: list(islice(lines, BATCH_LINES)), [])
    _work_by(plan)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), follow_parent)) if workers > 1 else None
        looked = ((Looked(chunk, None), chunk) for chunk in chunks) if kept is None else _looked(chunks, kept)
        for (chunk, found), made in where_needed(pool, _run, looked, 2 * workers):
            fresh = None if made is None else Fresh(pa.ipc.read_record_batch(made.buffer, SCHEMA), made.counts)
            if kept is None or found is None:
                assert fresh is not None
                batch = fresh.batch
            else:
                batch = kept.join(found, fresh)
            if made is not None and len(made.counts) == len(chunk):
                tally.add(made.tally)
            else:
                tally.take(len(chunk), counted(batch))
            yield batch


class Looked(NamedTuple):
    """Some lines, with what is kept of them."""

    chunk: list[Line]
    found: Found | None


def _looked(chunks: Iterable[list[Line]], kept: KeptLines) -> Iterator[tuple[Looked, list[Line] | None]]:
    """Each chunk with those of its lines that must be worked on."""
    for chunk in chunks:
        found = kept.look(chunk)
        yield Looked(chunk, found), [chunk[number] for number in found.missing] or None


def workers_for(size: int, wanted: int | None) -> int:
    """Processes for so many bytes of input, unless the user wants another number."""
    return processes_for(size, worth=PARALLEL_FROM) if wanted is None else max(1, wanted)


class Made(NamedTuple):
    """Rows of some lines, as they cross to another process."""

    buffer: pa.Buffer
    """Record batch, serialised."""
    counts: list[int]
    """Rows of each line."""
    tally: Tally


_plan: Plan | None = None


def _work_by(plan: Plan) -> None:
    global _plan
    _plan = plan


def _run(chunk: list[Line]) -> Made:
    assert _plan is not None
    plan = _plan
    with no_collector():
        by_line = plan.maker.rows_by_job([plan.to_job(line) for line in chunk], plan.habits)
    rows = [row for rows in by_line for row in rows]
    tally = Tally()
    tally.take(len(chunk), rows)
    return Made(record_batch(rows).serialize(), [len(rows) for rows in by_line], tally)
