"""Worker processes that examine batches; the results do not depend on their number."""

import contextlib
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipeline.core.process.parent_death import begin_worker
from pipeline.core.process.pools import processes_for, where_needed
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.loading import load_tokenizer
from pipeline.stages.audit.config import AuditSection, ExpectSection
from pipeline.stages.audit.engine import BatchResult, examine, sketch_of
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.inputs.context import Context, make_context
from pipeline.stages.audit.inputs.endpoints import Endpoints
from pipeline.stages.audit.inputs.heldout import Heldout
from pipeline.stages.audit.inputs.source import Rows, Source
from pipeline.stages.audit.sketch import Sketch, in_memory

WORTH_IT = 2 << 20
"""Size in bytes of a tokens file from which more processes save more time than they take to start."""
MOST = 4
"""Largest number of processes: more would wait for the one that reads the file."""
_AHEAD = 2
"""Batches that may wait for each process, so that memory does not grow with the file."""


@dataclass(frozen=True)
class _Setup:
    """The parts from which a spawned worker builds the context again."""

    record: TargetRecord
    expect: ExpectSection
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    heldout: Heldout | None
    endpoints: Endpoints
    section: AuditSection


_here: tuple[Context, AuditSection] | None = None
"""The context and the settings of this process, made once."""
_threaded = False
"""True once this process has examined rows: rensa has then started threads, on which a forked child would hang."""


def suitable(path: Path) -> int:
    """Return the number of processes for a tokens file: 1 for a small or missing file, else one for each core."""
    try:
        size = path.stat().st_size
    except OSError:
        return 1
    return processes_for(size, worth=WORTH_IT, most=MOST)


def _inherit(context: Context, section: AuditSection) -> None:
    begin_worker()
    _work_with(context, section)


def _work_with(context: Context, section: AuditSection) -> None:
    global _here
    _here = context, section


def _rebuild(setup: _Setup) -> None:
    tokenizer = load_tokenizer(setup.record)  # the parent process has checked it
    context = make_context(
        setup.record, tokenizer, setup.expect, setup.allow, setup.deny, setup.heldout, setup.endpoints
    )
    _inherit(context, setup.section)


def _examine(rows: Rows) -> BatchResult:
    global _threaded
    assert _here is not None
    context, section = _here
    _threaded = True
    return examine(rows.to_batch(context), section)


def _pool(context: Context, section: AuditSection, workers: int) -> ProcessPoolExecutor:
    """Start processes that have the context: inherited by a fork, or built again where a fork is not safe."""
    if not _threaded:
        return ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _inherit, (context, section))
    setup = _Setup(
        context.record, context.expect, context.allow, context.deny, context.heldout, context.endpoints, section
    )
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _rebuild, (setup,))


def sketches(others: Iterable[tuple[str, Batch]], section: AuditSection) -> list[Sketch]:
    """Sketch the rows of other datasets, given as batches with the dataset's name; one sketch for each dataset."""
    global _threaded
    sketched: dict[str, list[pa.RecordBatch]] = {}
    for name, batch in others:
        _threaded = True
        sketched.setdefault(name, []).append(sketch_of(batch, section))
    return [in_memory(name, batches) for name, batches in sketched.items()]


def batch_results(source: Source, context: Context, section: AuditSection, workers: int) -> Iterator[BatchResult]:
    """Examine all batches and yield their results in row order.

    Raises:
        AerieError: a worker died.

    """
    _work_with(context, section)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(_pool(context, section, workers)) if workers > 1 else None
        for _, result in where_needed(pool, _examine, ((None, rows) for rows in source.rows()), _AHEAD * workers):
            assert result is not None  # every batch was given to be examined
            yield result
