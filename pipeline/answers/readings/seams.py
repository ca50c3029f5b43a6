"""White space that a server may have stripped at the seams, and the variants of a reading that put it back."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from pipeline.answers.providers.habits import SEAMS
from pipeline.answers.readings.markers import Piece

MAX_EXTRA = 4
"""Most tokens that stripped white space may cost; a larger difference has another cause."""

MAX_CHOICES = 6
"""Most kinds of white space tried at each seam."""

Change = dict[str, str]
"""Maps a seam to the white space put back there."""


def variants(
    pieces: tuple[Piece, ...], spaces: Mapping[str, Sequence[str]], usual: Mapping[str, str]
) -> Iterator[tuple[tuple[Piece, ...], Change]]:
    """Yield each way to put the given white space back at the given seams, those that change the fewest seams first.

    `usual` holds the white space that the format's template writes; it is tried as well.
    """
    pieces = _with_empty_content(pieces)
    places = _places(pieces)
    present = [seam for seam in SEAMS if seam in spaces and seam in places]
    choices = [
        list(dict.fromkeys(("", *([usual[seam]] if seam in usual else []), *spaces[seam])))[:MAX_CHOICES]
        for seam in present
    ]
    combined = [dict(zip(present, choice, strict=True)) for choice in itertools.product(*choices)]
    for change in sorted(combined, key=lambda change: sum(map(bool, change.values()))):
        if kept := {seam: text for seam, text in change.items() if text}:
            yield _changed(pieces, places, kept), kept


def templated(pieces: tuple[Piece, ...], usual: Mapping[str, str]) -> tuple[Piece, ...]:
    """Return the pieces with the template's own white space at each seam where the text shows none.

    A reasoning that is not closed gets none at its end.
    """
    pieces = _with_empty_content(pieces)
    places = _places(pieces)
    closed = any(piece.kind == "think_close" for piece in pieces)
    change = {}
    for seam, space in usual.items():
        if seam in places and (closed or seam != "reasoning_end"):
            text = pieces[places[seam]].text
            edge = text[:1] if seam.endswith("start") else text[-1:]
            if not edge.isspace():
                change[seam] = space
    return tuple(piece for piece in _changed(pieces, places, change) if piece.text)


def describe(change: Change) -> str:
    """Describe the repair for a note."""
    return "seam " + " ".join(f"{seam}={text!r}" for seam, text in change.items())


def _with_empty_content(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Add an empty content between the close of the reasoning and the calls.

    Servers drop a content there that is only white space.
    """
    for index, (piece, following) in enumerate(itertools.pairwise(pieces)):
        if piece.kind == "think_close" and following.kind in ("tools_open", "call_open"):
            return (*pieces[: index + 1], Piece("content", None, ""), *pieces[index + 1 :])
    return pieces


def _places(pieces: tuple[Piece, ...]) -> dict[str, int]:
    """Return for each seam the index of the text piece that has it."""
    places: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        if piece.token is None and piece.kind in ("reasoning", "content"):
            places.setdefault(f"{piece.kind}_start", index)
            places[f"{piece.kind}_end"] = index
    return places


def _changed(pieces: tuple[Piece, ...], places: dict[str, int], change: Change) -> tuple[Piece, ...]:
    result = list(pieces)
    for seam, space in change.items():
        piece = result[places[seam]]
        text = space + piece.text if seam.endswith("start") else piece.text + space
        result[places[seam]] = piece._replace(text=text)
    return tuple(result)
