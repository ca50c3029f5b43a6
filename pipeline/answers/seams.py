"""White space that a server may have stripped where special tokens stand: the variants of a reading that put it back."""

import itertools
from collections.abc import Iterator

from pipeline.answers.habits import SEAMS
from pipeline.answers.markers import Piece

WHITE_SPACE = ("", "\n", "\n\n", " ", " \n")
"""What models put at a seam; nothing comes first."""

MAX_EXTRA = 4
"""Tokens that stripped white space may cost; a larger difference has another cause."""

Change = dict[str, str]
"""Seam to the white space put back there."""


def variants(pieces: tuple[Piece, ...], seams: frozenset[str], usual: dict[str, str]) -> Iterator[tuple[tuple[Piece, ...], Change]]:
    """Every way to put white space back at the given seams, fewest seams first; `usual` adds what the format's template writes."""
    places = _places(pieces)
    present = [seam for seam in SEAMS if seam in seams and seam in places]
    choices = [list(dict.fromkeys((*WHITE_SPACE, usual.get(seam, "")))) for seam in present]
    combined = [dict(zip(present, choice, strict=True)) for choice in itertools.product(*choices)]
    for change in sorted(combined, key=lambda change: sum(map(bool, change.values()))):
        if kept := {seam: text for seam, text in change.items() if text}:
            yield _changed(pieces, places, kept), kept


def _places(pieces: tuple[Piece, ...]) -> dict[str, int]:
    """Where each seam is: index of the text piece that ends there."""
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


def shown(reasoning: str, content: str) -> Iterator[str]:
    """Seams at which the texts show white space."""
    for name, text in (("reasoning", reasoning), ("content", content)):
        if text[:1].isspace():
            yield f"{name}_start"
        if text[-1:].isspace():
            yield f"{name}_end"


def describe(change: Change) -> str:
    """The repair as a note."""
    return "seam " + " ".join(f"{seam}={text!r}" for seam, text in change.items())
