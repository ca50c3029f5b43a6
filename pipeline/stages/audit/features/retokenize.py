"""Runs of ordinary tokens, decoded to text, and the tokens that encoding the text again would change.

Special and reserved ids end a run: they have no text and are never encoded from text.
"""

import codecs
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.audit.inputs.context import Context


class TextRun(NamedTuple):
    """A run of ordinary tokens, at [start, end) of the row's completion."""

    start: int
    end: int
    ids: NDArray[np.int32]
    data: bytes
    text: str
    """The bytes as text, with a NUL for each byte that is not UTF-8, so that offsets in bytes stay true."""
    bad_byte: int | None
    """Offset of the first byte that is not UTF-8, or None."""


def _nul_for_each_bad_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\0" * (error.end - error.start), error.end


codecs.register_error("aerie.nul", _nul_for_each_bad_byte)


def decode(data: bytes) -> tuple[str, int | None]:
    """Return bytes as text, with a NUL for each byte that is not UTF-8, and the offset of the first such byte."""
    try:
        return data.decode(), None
    except UnicodeDecodeError as error:
        return data.decode("utf-8", "aerie.nul"), error.start


def text_runs(
    context: Context, values: NDArray[np.int32], starts: NDArray[np.int64], ordinary: NDArray[np.bool_]
) -> list[list[TextRun]]:
    """Return the runs of ordinary tokens of each row.

    ``values`` [ids] holds the rows end to end, ``starts`` [rows + 1] their bounds, and ``ordinary`` [ids] is True for
    an ordinary token.
    """
    opens = ordinary.copy()
    opens[1:] &= ~ordinary[:-1]
    row_starts = starts[:-1][starts[:-1] < len(values)]
    opens[row_starts] |= ordinary[row_starts]
    closes = ordinary.copy()
    closes[:-1] &= opens[1:] | ~ordinary[1:]
    begins, ends = np.flatnonzero(opens), np.flatnonzero(closes) + 1
    rows = np.searchsorted(starts, begins, side="right") - 1
    runs: list[list[TextRun]] = [[] for _ in range(len(starts) - 1)]
    data, bounds = context.bytes_of(values)
    where = zip(
        rows.tolist(),
        begins.tolist(),
        ends.tolist(),
        starts[rows].tolist(),
        bounds[begins].tolist(),
        bounds[ends].tolist(),
        strict=True,
    )
    for row, begin, end, offset, first, last in where:
        piece = data[first:last]
        runs[row].append(TextRun(begin - offset, end - offset, values[begin:end], piece, *decode(piece)))
    return runs


def changed(context: Context, run: TextRun) -> list[int]:
    """Return positions in the completion: the tokens that encoding the text again does not give at the same bytes."""
    if context.tokenizer.encodes_to(run.text, run.ids.tobytes()):
        return []
    kept = set(_ends(context, context.tokenizer.encode(run.text)))
    return [run.start + index for index, piece in enumerate(_ends(context, run.ids.tolist())) if piece not in kept]


def _ends(context: Context, ids: list[int]) -> list[tuple[int, int]]:
    """Pair each token with the offset of the byte after its last."""
    ends = np.cumsum([len(context.pieces[token]) for token in ids])
    return list(zip(ends.tolist(), ids, strict=True))
