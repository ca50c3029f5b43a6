"""Checks for ids that the model cannot or must not emit, and for bytes that are not text."""

import re
from collections.abc import Iterator
from itertools import takewhile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.stages.audit.checks.check import Complaint
from pipeline.stages.audit.config import CheckSection, CountSection
from pipeline.stages.audit.features.prompt_start import PROMPT_STARTS
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.inputs.context import CONTROL, REPLACEMENT

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""C0 except tab, line feed and carriage return; DEL; C1."""
_MOST_STARTS = 4
"""Tokens at which the start of a prompt is looked for."""
_REPLACEMENT = re.compile("\ufffd")

STRUCTURAL = {
    "think_open",
    "think_close",
    "tools_open",
    "call_open",
    "call_args_open",
    "call_close",
    "tools_close",
    "end",
}
"""Kinds of segments that are exactly one special token."""


def ids_in_vocabulary(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    size = batch.context.record.vocab_size
    for part, ragged in (("prompt", batch.prompt), ("answer", batch.completion)):
        flat = np.flatnonzero((ragged.values < 0) | (ragged.values >= size))
        rows, positions = ragged.where(flat)
        _, firsts = np.unique(rows, return_index=True)
        for first in firsts.tolist():
            position = int(positions[first])
            message = f"id {ragged.values[flat[first]]} of the {part} at {position} is outside the vocabulary of {size}"
            yield Complaint(int(rows[first]), position if part == "answer" else None, message)


def prompt_start(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    token, times = PROMPT_STARTS[batch.context.record.chat]
    start = batch.context.record.special_tokens.get(token)
    if start is None:
        return
    for row in np.flatnonzero(batch.prompt.lengths).tolist():
        found = sum(1 for _ in takewhile(start.__eq__, batch.prompt[row][:_MOST_STARTS].tolist()))
        if found != times:
            yield Complaint(
                row, None, f"the prompt begins with {token!r} {found} times; the format has it {times} times"
            )


def special_ids(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    context, values = batch.context, batch.completion.values
    admitted = [token for role, _ in context.record.roles if (token := context.role(role)) is not None]
    flat = np.flatnonzero(batch.special)
    flat = flat[~np.isin(values[flat], admitted)]
    rows, positions = batch.completion.where(flat)
    named = {token: text for text, token in context.record.special_tokens.items()}
    for row, position, token in zip(rows.tolist(), positions.tolist(), values[flat].tolist(), strict=True):
        what = f"{named[token]} has no place in an answer" if token in named else "is a reserved or unnamed special id"
        yield Complaint(row, position, f"id {token} {what}")


def _odd_segments(batch: Batch) -> list[int]:
    """Return the rows with a fault in their segments, looking at all rows at once."""
    column = batch.table.column("segments")
    starts, ends = (
        column.flatten().field(name).to_numpy(zero_copy_only=False).astype(np.int64) for name in ("start", "end")
    )
    counts = np.diff(column.offsets.to_numpy())
    rows = np.repeat(np.arange(batch.size), counts)
    first = np.diff(rows, prepend=-1) != 0
    last = np.append(first[1:], True)[: len(first)]
    lengths = batch.completion.lengths[rows]
    gap = (
        (starts != np.where(first, 0, np.roll(ends, 1)))
        | (ends <= starts)
        | (ends > lengths)
        | (last & (ends != lengths))
    )
    specials = np.cumsum(np.append(0, batch.special))
    offsets = batch.completion.starts[rows]
    inside = specials[np.where(gap, offsets, offsets + ends)] - specials[np.where(gap, offsets, offsets + starts)]
    alone = pc.is_in(column.flatten().field("kind"), value_set=pa.array(sorted(STRUCTURAL))).to_numpy(
        zero_copy_only=False
    )
    odd = gap | np.where(alone, (ends - starts != 1) | (inside != 1), inside > 0)
    odd_rows: list[int] = np.unique(rows[odd]).tolist()
    return odd_rows


def segments(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    for row in _odd_segments(batch):
        ids, base = batch.completion[row], batch.completion.starts[row]
        at = 0
        for part in batch.table.column("segments")[row].as_py():
            start, end, kind = part["start"], part["end"], part["kind"]
            if start != at or end <= start or end > len(ids):
                yield Complaint(
                    row,
                    min(at, max(len(ids) - 1, 0)),
                    f"segment {kind} is [{start}, {end}); it should begin at {at} and end by {len(ids)}",
                )
                break
            at = end
            inside = np.flatnonzero(batch.special[base + start : base + end])
            if kind in STRUCTURAL and (end - start != 1 or not len(inside)):
                yield Complaint(row, start, f"segment {kind} is not one special id")
            elif kind not in STRUCTURAL and len(inside):
                token = int(ids[start + inside[0]])
                yield Complaint(
                    row,
                    start + int(inside[0]),
                    f"{batch.context.tokenizer.show(token)} ({token}) inside a segment of {kind}",
                )
        else:
            if at != len(ids):
                yield Complaint(row, at, f"the segments end at {at}, the answer at {len(ids)}")


def valid_utf8(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    for row, runs in enumerate(batch.runs):
        for run in runs:
            if run.bad_byte is None:
                continue
            last = batch.cut[row] and run.end == len(batch.completion[row])
            if last and _begins_character(run.data[run.bad_byte :]):
                continue
            position = run.start + token_at(batch, run.ids, run.bad_byte)
            yield Complaint(row, position, f"byte {run.data[run.bad_byte]:#04x} is not UTF-8")


def _begins_character(data: bytes) -> bool:
    """Return whether some bytes are the beginning of one UTF-8 character, cut short."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def token_at(batch: Batch, ids: NDArray[np.int32], byte: int) -> int:
    """Return the index of the token that holds a byte, given the byte's offset in the text of ``ids``."""
    ends = np.cumsum([len(batch.context.pieces[token]) for token in ids.tolist()])
    return int(np.searchsorted(ends, byte, side="right"))


def _characters(
    batch: Batch, suspect: int, pattern: re.Pattern[str], what: str, settings: CountSection
) -> Iterator[Complaint]:
    may_have = np.unique(batch.completion.where(np.flatnonzero(batch.suspects & suspect))[0])
    for row in may_have.tolist():
        found = 0
        first = None
        for run in batch.runs[row]:
            text = run.text if run.bad_byte is None else run.data.decode("utf-8", "ignore")
            for match in pattern.finditer(text):
                found += 1
                first = first or (run, len(text[: match.start()].encode()))
        if first is not None and found > settings.max_count:
            run, byte = first
            position = run.start + min(token_at(batch, run.ids, byte), len(run.ids) - 1)
            yield Complaint(row, position, f"{found} {what}")


def replacement_characters(batch: Batch, settings: CountSection) -> Iterator[Complaint]:
    return _characters(batch, REPLACEMENT, _REPLACEMENT, "replacement characters (U+FFFD)", settings)


def control_characters(batch: Batch, settings: CountSection) -> Iterator[Complaint]:
    return _characters(batch, CONTROL, _CONTROL, "control characters", settings)
