"""Batches examined by several processes; what comes out is the same, in the same order, as from one."""

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
from pipeline.stages.audit.engine import Part, examine, sketch_of
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.inputs.context import Context, make_context
from pipeline.stages.audit.inputs.endpoints import Endpoints
from pipeline.stages.audit.inputs.heldout import Heldout
from pipeline.stages.audit.inputs.source import Rows, Source
from pipeline.stages.audit.kept import Fresh, KeptAudit, told_of
from pipeline.stages.audit.sketch import Sketch, in_memory

WORTH_IT = 2 << 20
"""Bytes of a tokens file from which more processes pay for what they take to start."""
MOST = 4
"""More processes than this wait for the one that reads."""
_AHEAD = 2
"""Batches a process may have waiting: memory does not grow with the file."""


@dataclass(frozen=True)
class _Setup:
    """What a worker needs to make the same context."""

    record: TargetRecord
    expect: ExpectSection
    allow: list[str]
    deny: list[str]
    heldout: Heldout | None
    endpoints: Endpoints
    section: AuditSection


_here: tuple[Context, AuditSection] | None = None
"""This worker's context, made once."""
_threaded = False
"""Whether this process has examined rows itself: rensa then runs threads, and a forked child would wait for them for ever."""


def suitable(path: Path) -> int:
    """Processes for a file of tokens: one for a small or missing file, else one a core."""
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
    tokenizer = load_tokenizer(setup.record)  # checked by the process that started this one
    context = make_context(
        setup.record, tokenizer, setup.expect, setup.allow, setup.deny, setup.heldout, setup.endpoints
    )
    _inherit(context, setup.section)


def _examine(rows: Rows) -> Part:
    return _examined(rows)[1]


def _examine_to_keep(rows: Rows) -> Fresh:
    batch, part = _examined(rows)
    return Fresh(part, told_of(batch, part))


def _examined(rows: Rows) -> tuple[Batch, Part]:
    global _threaded
    assert _here is not None
    context, section = _here
    _threaded = True
    batch = rows.to_batch(context)
    return batch, examine(batch, section)


def _pool(context: Context, section: AuditSection, workers: int) -> ProcessPoolExecutor:
    """Processes that have the context: inherited in no time by a fork, or built anew where a fork is not safe."""
    if not _threaded:
        return ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _inherit, (context, section))
    setup = _Setup(
        context.record,
        context.expect,
        list(context.allow),
        list(context.deny),
        context.heldout,
        context.endpoints,
        section,
    )
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _rebuild, (setup,))


def sketches(others: Iterable[tuple[str, Batch]], section: AuditSection) -> list[Sketch]:
    """What rows of other datasets are compared by, each dataset with its name."""
    global _threaded
    found: dict[str, list[pa.RecordBatch]] = {}
    for name, batch in others:
        _threaded = True
        found.setdefault(name, []).append(sketch_of(batch, section))
    return [in_memory(name, batches) for name, batches in found.items()]


def parts(
    source: Source, context: Context, section: AuditSection, workers: int, kept: KeptAudit | None = None
) -> Iterator[Part]:
    """Parts of all batches, in row order; what ``kept`` has of a row is taken from there.

    Raises:
        AerieError: a worker died.

    """
    _work_with(context, section)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(_pool(context, section, workers)) if workers > 1 else None
        if kept is None:
            yield from (
                part
                for _, part in where_needed(pool, _examine, ((None, rows) for rows in source.rows()), _AHEAD * workers)
                if part is not None
            )
            return
        for pending, fresh in where_needed(pool, _examine_to_keep, kept.look(source.rows()), _AHEAD * workers):
            yield kept.part(pending, fresh)
        kept.close()
