"""The seven checks of an answer's form.

They are meant for answers that the model ended. Where the token limit cut an answer (finish_reason `length`), nothing
is missed that the model had not yet reached; the part that exists must still be right.
"""

from collections.abc import Iterator

import numpy as np

from pipeline.stages.audit.checks.check import Complaint
from pipeline.stages.audit.config import CheckSection, RoundTripSection
from pipeline.stages.audit.features.retokenize import changed
from pipeline.stages.audit.inputs.batch import Batch


def ends_with_end_token(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    end = batch.context.role("end")
    starts, lengths = batch.completion.starts, batch.completion.lengths
    ended = np.append(batch.completion.values == end, False)[starts[1:] - 1] & (lengths > 0)
    for row in np.flatnonzero(batch.present & ~batch.cut & ~ended).tolist():
        ids = batch.completion[row]
        if not len(ids):
            yield Complaint(row, None, f"the completion is empty; it should end with {end}")
        else:
            yield Complaint(
                row,
                len(ids) - 1,
                f"ends with {ids[-1]} ({batch.context.tokenizer.show(int(ids[-1]))!r}), not with {end}",
            )


def one_think_close(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    close = batch.hits(batch.context.role("think_close"))
    for row in np.flatnonzero(batch.present & (close.counts != batch.thinks)).tolist():
        found, wanted = int(close.counts[row]), int(batch.thinks[row])
        if found == 0 and batch.cut[row]:
            continue
        second = close.positions[close.rows == row][wanted] if found > wanted else None
        yield Complaint(row, None if second is None else int(second), f"{found} think-close tokens, {wanted} expected")


def think_close_position(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    close, end = batch.hits(batch.context.role("think_close")).first, batch.hits(batch.context.role("end")).first
    lengths = batch.completion.lengths
    late = (end >= 0) & (end < close)
    nothing_after = (close >= lengths - 2) & ~batch.cut
    for row in np.flatnonzero(batch.present & (close >= 0) & (late | nothing_after)).tolist():
        at = int(close[row])
        if late[row]:
            yield Complaint(row, at, f"think-close at {at} comes after the end token at {end[row]}")
        else:
            yield Complaint(row, at, f"think-close at {at} of {lengths[row]} tokens: no answer follows it")


def one_end_token(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    end = batch.hits(batch.context.role("end"))
    for row in np.flatnonzero(batch.present & (end.counts != 1)).tolist():
        if end.counts[row] == 0 and batch.cut[row]:
            continue
        yield Complaint(
            row, int(end.first[row]) if end.counts[row] else None, f"{end.counts[row]} end tokens, 1 expected"
        )


def no_think_open(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    opens = batch.hits(batch.context.role("think_open"))
    for row, position in zip(opens.rows.tolist(), opens.positions.tolist(), strict=True):
        if position > 0 or batch.opened[row]:
            yield Complaint(row, position, f"think-open token at {position}")


def round_trip(batch: Batch, settings: RoundTripSection) -> Iterator[Complaint]:
    for row, runs in enumerate(batch.runs):
        differing = [position for run in runs for position in changed(batch.context, run)]
        length = len(batch.completion[row])
        if differing and len(differing) > settings.max_rate * length:
            yield Complaint(
                row,
                differing[0],
                f"{len(differing)} of {length} tokens differ after decoding and encoding "
                f"({len(differing) / length:.1%})",
            )


def reasoning_not_empty(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    close = batch.hits(batch.context.role("think_close")).first
    where = close.tolist()
    for row in np.flatnonzero(batch.present & batch.thinks & (close >= 0)).tolist():
        if not any(run.end <= where[row] and not run.text.isspace() for run in batch.runs[row]):
            yield Complaint(row, where[row], "there is no text before the think-close token")
