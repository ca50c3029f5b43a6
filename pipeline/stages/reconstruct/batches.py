"""Lines to record batches, in order, by several processes when there is enough to do.

The result does not depend on the number of processes: the lines are cut into pieces by their number alone.
"""

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
from pipeline.answers.providers.habits import SAMPLE_ROWS, HabitCounts, Habits, add_counts
from pipeline.answers.rows import RowMaker
from pipeline.core.process.garbage_collection import no_collector
from pipeline.core.process.parent_death import begin_worker
from pipeline.core.process.pools import processes_for, where_needed
from pipeline.core.process.shared_memory import Parcel, Slots
from pipeline.formats.prompt_responses import PromptResponse
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.stages.reconstruct.columns import joined, record_batch
from pipeline.stages.reconstruct.summary import Tally

GROUP_LINES = 256
"""Lines whose rows make one row group of the table."""
PIECE_LINES = 128
"""Lines that a process gets at a time: few, so that all processes end together."""
SURVEY_LINES = 32
"""Lines that are examined together for habits: few, since most files need only some hundred."""
SLOT_BYTES = 4 << 20
"""Bytes of shared memory for a piece, or for its rows; larger ones go through a pipe."""
PARALLEL_FROM = 4 << 20
"""Bytes of input from which more than one process pays."""

ToJob = Callable[[PromptResponse], Job]

_NAMES_ONE = re.compile(b'"provider": ?"')
"""Matches a line that names any provider."""


class Plan(NamedTuple):
    """All that it takes to make rows of lines."""

    maker: RowMaker
    to_job: ToJob
    habits: dict[str | None, Habits]


class Piece(NamedTuple):
    """Lines that one process turns into rows."""

    lines: list[PromptResponse]
    ends_group: bool
    """True when these are the last lines of their row group."""


class PieceRows(NamedTuple):
    """The rows of a piece."""

    batch: pa.RecordBatch
    tally: Tally


class SentPiece(NamedTuple):
    """A piece on its way to a process."""

    parcel: Parcel
    """Response and prompt of each line."""
    slot: int | None
    """Slot that may hold the rows; None when no slot was free."""
    numbers: list[int]


class SentRows(NamedTuple):
    """The rows of a piece on their way back."""

    parcel: Parcel
    """The batch, serialized by Arrow."""
    tally: Tally


_plan: Plan | None = None
_slots: Slots | None = None


def survey(lines: Iterable[PromptResponse], maker: RowMaker, to_job: ToJob) -> dict[str | None, HabitCounts]:
    """First pass: count what the first rows of each provider show of its habits."""
    counts: dict[str | None, HabitCounts] = {}
    enough: set[str | None] = set()
    named: re.Pattern[bytes] | None = None

    def needed(line: PromptResponse) -> bool:
        """Return False for a line that surely belongs to a provider with enough rows: such a line is not parsed."""
        text = line.response or b""
        if named is not None and named.search(text):
            return False
        return None not in enough or _NAMES_ONE.search(text) is not None

    wanted = filter(needed, lines)
    while chunk := list(islice(wanted, SURVEY_LINES)):
        with no_collector():
            shown = list(maker.habit_counts(map(to_job, chunk), enough))
        for provider, row_counts in shown:
            add_counts(counts, provider, row_counts, SAMPLE_ROWS)
        enough = {provider for provider, own in counts.items() if own.rows >= SAMPLE_ROWS}
        named = _naming([provider for provider in enough if provider])
    return counts


def _naming(providers: Sequence[str]) -> re.Pattern[bytes] | None:
    """Return a pattern that matches a line that names one of the providers; None without providers."""
    names = b"|".join(re.escape(orjson.dumps(name)) for name in providers)
    return re.compile(b'"provider": ?(?:' + names + b")") if names else None


def batches(lines: Iterator[PromptResponse], plan: Plan, tally: Tally, workers: int) -> Iterator[pa.RecordBatch]:
    """Second pass: make the rows of each group of lines, and count them in `tally`.

    `workers` processes do the work; for 1 it is done in this one.

    Raises:
        AerieError: a process died.
    """
    pieces = _pieces(lines)
    parts: list[pa.RecordBatch] = []
    for ends_group, rows in _rows_by_processes(pieces, plan, workers) if workers > 1 else _rows_here(pieces, plan):
        parts.append(rows.batch)
        tally.add(rows.tally)
        if ends_group:
            yield joined(parts)
            parts = []


def _pieces(lines: Iterator[PromptResponse]) -> Iterator[Piece]:
    while group := list(islice(lines, GROUP_LINES)):
        for start in range(0, len(group), PIECE_LINES):
            yield Piece(group[start : start + PIECE_LINES], start + PIECE_LINES >= len(group))


def _rows_here(pieces: Iterable[Piece], plan: Plan) -> Iterator[tuple[bool, PieceRows]]:
    for piece in pieces:
        with no_collector():
            rows = _piece_rows(piece.lines, plan)
        yield piece.ends_group, rows


def _piece_rows(lines: Sequence[PromptResponse], plan: Plan) -> PieceRows:
    rows = plan.maker.rows(map(plan.to_job, lines), plan.habits)
    tally = Tally()
    tally.count(len(lines), rows)
    return PieceRows(record_batch(rows), tally)


def _rows_by_processes(pieces: Iterable[Piece], plan: Plan, workers: int) -> Iterator[tuple[bool, PieceRows]]:
    global _plan, _slots
    ahead = 2 * workers
    _plan, _slots = plan, Slots(ahead + 2, SLOT_BYTES)  # forked processes inherit them; a short file is worked on here
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _start_worker) as pool:
        for (ends_group, slot), sent in where_needed(pool, _work, _sent_pieces(pieces, _slots), ahead):
            assert sent is not None
            (batch,) = _slots.get(sent.parcel)
            rows = PieceRows(pa.ipc.read_record_batch(pa.py_buffer(batch), SCHEMA), sent.tally)
            _slots.give_back(slot)
            yield ends_group, rows


def _sent_pieces(pieces: Iterable[Piece], slots: Slots) -> Iterator[tuple[tuple[bool, int | None], SentPiece]]:
    """Put each piece into a slot, which is free again when its rows were read."""
    for piece in pieces:
        slot = slots.take()
        parcel = slots.put(slot, [text for line in piece.lines for text in (line.response, line.prompt)])
        yield (piece.ends_group, slot), SentPiece(parcel, slot, [line.number for line in piece.lines])


def _start_worker() -> None:
    begin_worker()
    gc.freeze()  # inherited objects are not garbage, and a collection would copy their memory


def _work(sent: SentPiece) -> SentRows:
    """Make the rows of a piece in a worker process."""
    assert _plan is not None
    assert _slots is not None
    texts = iter(_slots.get(sent.parcel))
    with no_collector():
        rows = _piece_rows(list(map(PromptResponse, sent.numbers, texts, texts)), _plan)
    return SentRows(_slots.put(sent.slot, [rows.batch.serialize()]), rows.tally)


def workers_for(size: int, wanted: int | None) -> int:
    """Return how many processes to use for an input of `size` bytes; `wanted` is the user's own number, if any."""
    return processes_for(size, worth=PARALLEL_FROM) if wanted is None else max(1, wanted)
