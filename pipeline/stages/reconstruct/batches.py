"""Lines to record batches, in order: in several processes when there is enough to do. The result does not depend on how many: what is handed out is cut by lines alone."""

import gc
import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from typing import NamedTuple

import orjson
import pyarrow as pa

from pipeline.answers.lines import Job
from pipeline.answers.providers.habits import SAMPLE_ROWS, Habits, Seen, take_in
from pipeline.answers.rows import Row, RowMaker
from pipeline.core.process.garbage_collection import no_collector
from pipeline.core.process.parent_death import begin_worker
from pipeline.core.process.pools import processes_for, where_needed
from pipeline.core.process.shared_memory import Parcel, Slots
from pipeline.core.reuse.rows import Found
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.stages.reconstruct.columns import counted, joined, record_batch
from pipeline.stages.reconstruct.kept import Fresh, KeptLines, Line
from pipeline.stages.reconstruct.summary import Tally

GROUP_LINES = 256
"""Lines whose rows are a row group of the table."""
PIECE_LINES = 128
"""Lines that are handed out at a time: few, so that all processes end together."""
SURVEY_LINES = 32
"""Lines that are looked at together for habits: few, since most files need only some hundred."""
SLOT_BYTES = 4 << 20
"""Of shared memory for a piece, or for its rows: larger ones go through a pipe."""
PARALLEL_FROM = 4 << 20
"""Bytes of input from which more than one core pays."""

ToJob = Callable[[Line], Job]
Shown = dict[str | None, Seen]
"""What lines show of their providers."""

_NAMES_ONE = re.compile(b'"provider": ?"')
"""How a line names any provider."""


class Plan(NamedTuple):
    """All that it takes to make rows of lines."""

    maker: RowMaker
    to_job: ToJob
    habits: dict[str | None, Habits]


class Group(NamedTuple):
    """Lines of a row group, with what is kept of them."""

    lines: list[Line]
    found: Found | None


class Made(NamedTuple):
    """Rows of some lines."""

    batch: pa.RecordBatch
    counts: list[int]
    """Rows of each line."""
    tally: Tally


class Sent(NamedTuple):
    """A piece on its way to a process."""

    parcel: Parcel
    """Text and prompt of each line."""
    slot: int | None
    """Where the rows may be put."""
    numbers: list[int]


class Answered(NamedTuple):
    """`Made` on its way back."""

    parcel: Parcel
    """The batch, as Arrow writes it."""
    counts: list[int]
    tally: Tally


_plan: Plan | None = None
_slots: Slots | None = None

Tasks = Iterator[tuple[Group | None, list[Line] | None]]
"""Lines to work on, a piece at a time; beside the last piece of a group stands the group."""
Results = Iterator[tuple[Group | None, Made | None]]


def survey(lines: Iterable[Line], maker: RowMaker, to_job: ToJob, kept: KeptLines | None = None) -> Shown:
    """First pass: what the first rows of each provider show of its habits."""
    seen: Shown = {}
    enough: set[str | None] = set()
    named: re.Pattern[bytes] | None = None

    def needed(line: Line) -> bool:
        """Lines that name only a provider of whom enough is known, or none likewise, need not be parsed."""
        text = line[1] or b""
        return not (named is not None and named.search(text)) and not (
            None in enough and _NAMES_ONE.search(text) is None
        )

    wanted = filter(needed, lines)
    while chunk := list(islice(wanted, SURVEY_LINES)):
        before = [None if kept is None else kept.seen(line) for line in chunk]
        new = [line for line, shown in zip(chunk, before, strict=True) if shown is None]
        with no_collector():
            fresh = maker.shown(map(to_job, new), enough)
        if kept is not None:
            for line, now in zip(new, fresh, strict=True):
                if now is not None:
                    kept.add_seen(line, now)
        left = iter(fresh)
        for shown in before:
            now = next(left) if shown is None else shown
            take_in(seen, now or {}, SAMPLE_ROWS)
        enough = {name for name, counts in seen.items() if counts.rows >= SAMPLE_ROWS}
        named = _named([name for name in enough if name])
    return seen


def _named(providers: Sequence[str]) -> re.Pattern[bytes] | None:
    """How a line names one of these providers."""
    names = b"|".join(re.escape(orjson.dumps(name)) for name in providers)
    return re.compile(b'"provider": ?(?:' + names + b")") if names else None


def batches(
    lines: Iterator[Line], plan: Plan, tally: Tally, workers: int, *, kept: KeptLines | None = None
) -> Iterator[pa.RecordBatch]:
    """Second pass: the rows of each group of lines, counted in `tally`; made by so many processes, or here."""
    tasks = _tasks(lines, kept)
    parts: list[Made] = []
    for group, made in _by_processes(tasks, plan, workers) if workers > 1 else _here(tasks, plan):
        parts += [] if made is None else [made]
        if group is None:
            continue
        fresh = (
            Fresh(joined([part.batch for part in parts]), [count for part in parts for count in part.counts])
            if parts
            else None
        )
        if kept is None or group.found is None:
            assert fresh is not None
            batch = fresh.batch
        else:
            batch = kept.join(group.found, fresh)
        if fresh is not None and len(fresh.counts) == len(group.lines):
            for part in parts:
                tally.add(part.tally)
        else:
            tally.take(len(group.lines), counted(batch))
        parts = []
        yield batch


def _tasks(lines: Iterator[Line], kept: KeptLines | None) -> Tasks:
    """Each group's lines that must be worked on."""
    while group := list(islice(lines, GROUP_LINES)):
        found = None if kept is None else kept.look(group)
        needed = group if found is None else [group[number] for number in found.missing]
        pieces = [needed[start : start + PIECE_LINES] for start in range(0, len(needed), PIECE_LINES)]
        yield from ((None, piece) for piece in pieces[:-1])
        yield Group(group, found), pieces[-1] if pieces else None


def _here(tasks: Tasks, plan: Plan) -> Results:
    for group, piece in tasks:
        with no_collector():
            made = None if piece is None else _made(plan.maker.rows_by_job(map(plan.to_job, piece), plan.habits))
        yield group, made


def _made(by_line: list[list[Row]]) -> Made:
    rows = [row for rows in by_line for row in rows]
    tally = Tally()
    tally.take(len(by_line), rows)
    return Made(record_batch(rows), [len(rows) for rows in by_line], tally)


def _by_processes(tasks: Tasks, plan: Plan, workers: int) -> Results:
    global _plan, _slots
    ahead = 2 * workers
    _plan, _slots = plan, Slots(ahead + 2, SLOT_BYTES)  # forked processes inherit them; a few lines are worked on here
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _start) as pool:
        for (group, slot), sent in where_needed(pool, _run, _parcels(tasks, _slots), ahead):
            made = None if sent is None else _received(sent, _slots)
            _slots.give_back(slot)
            yield group, made


def _parcels(tasks: Tasks, slots: Slots) -> "Iterator[tuple[tuple[Group | None, int | None], Sent | None]]":
    """Each piece in a slot, which is free again when its rows were read."""
    for group, piece in tasks:
        if piece is None:
            yield (group, None), None
            continue
        slot = slots.take()
        yield (
            (group, slot),
            Sent(slots.put(slot, [part for line in piece for part in line[1:]]), slot, [line[0] for line in piece]),
        )


def _start() -> None:
    begin_worker()
    gc.freeze()  # what was inherited is no garbage, and looking through it would copy its memory


def _run(sent: Sent) -> Answered:
    """Rows of lines that came from another process, on their way back."""
    assert _plan is not None
    assert _slots is not None
    parts = iter(_slots.get(sent.parcel))
    with no_collector():
        made = _made(
            _plan.maker.rows_by_job(map(_plan.to_job, zip(sent.numbers, parts, parts, strict=True)), _plan.habits)
        )
    return Answered(_slots.put(sent.slot, [made.batch.serialize()]), made.counts, made.tally)


def _received(answered: Answered, slots: Slots) -> Made:
    (batch,) = slots.get(answered.parcel)
    return Made(pa.ipc.read_record_batch(pa.py_buffer(batch), SCHEMA), answered.counts, answered.tally)


def workers_for(size: int, wanted: int | None) -> int:
    """Cores to use for so many bytes of input, unless the user wants another number."""
    return processes_for(size, worth=PARALLEL_FROM) if wanted is None else max(1, wanted)
