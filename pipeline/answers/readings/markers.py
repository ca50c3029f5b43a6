"""Special tokens spelled out in a text: how they are found, and how a raw tool section is read."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.formats.schema.target import TargetRecord

LOOK_ALIKE = re.compile(r"<[|｜][^<>\s]{1,48}[|｜]>")
"""Matches a text that resembles a special token of some model."""


_OPENINGS = ("<|", "<｜")
"""The openings of special tokens in most models."""


def _stem(text: str) -> str:
    """Return a part of a special token's text that many tokens share.

    It is empty for names in square brackets, which play no role in an answer.
    """
    opening = next((start for start in _OPENINGS if text.startswith(start)), None)
    return opening or (text[1:].removeprefix("/") if text.startswith("<") else "")


class Piece(NamedTuple):
    """A stretch of an answer: one special token, or a text that is encoded on its own."""

    kind: str
    """Segment kind, as in `schema.tokens.Segment`."""
    token: int | None
    text: str
    """The text to encode; for a special token, its own text."""


class Section(NamedTuple):
    """A tool section that a text spells out."""

    before: str
    pieces: tuple[Piece, ...]
    after: str
    calls: int
    open_in: str | None
    """Role of the last marker when the section was cut inside a call; None when every call is closed."""
    closed: bool
    """True when the closing marker of the section is there, or the format has none."""

    def wrapped(self, markers: "Markers") -> tuple[Piece, ...] | None:
        """Return the pieces between the section's own markers, where a server may have dropped one or both.

        None when no marker is missing, or a call is cut.
        """
        if self.open_in is not None or self.closed or "tools_open" not in markers.roles:
            return None
        opening = () if self.pieces[0].kind == "tools_open" else (markers.piece("tools_open"),)
        return (*opening, *self.pieces, markers.piece("tools_close"))


def _alternation(texts: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


class Markers:
    """The special tokens of one target, searched for as texts."""

    def __init__(self, record: TargetRecord) -> None:
        self.roles = {role: (text, record.special_tokens[text]) for role, text in record.roles if text is not None}
        self.special_ids = dict(record.special_tokens)
        self._role_of = {text: role for role, (text, _) in self.roles.items()}
        self.named = _alternation(list(record.special_tokens))
        self._stems = [(stem[-1], stem) for stem in sorted({*map(_stem, record.special_tokens), *_OPENINGS} - {""})]
        self._tools = _alternation(
            [text for role, (text, _) in self.roles.items() if role.startswith(("tools_", "call_"))]
        )

    def text(self, role: str) -> str | None:
        """Return the text of the special token with a role, or None."""
        entry = self.roles.get(role)
        return entry[0] if entry else None

    def piece(self, role: str, kind: str | None = None) -> Piece:
        """Return the special token of a role as a piece, placed by id."""
        text, token = self.roles[role]
        return Piece(kind or role, token, text)

    def may_hold(self, text: str) -> bool:
        """Return whether the text could spell out a special token in angle brackets, or what looks like one.

        The test is cheap, and False is never wrong.
        """
        for last, stem in self._stems:  # noqa: SIM110 -- runs on every text; a generator would add a third to the time
            if last in text and stem in text:  # the search for a single character is the fastest
                return True
        return False

    def literals(self, text: str) -> bool:
        """Return whether a special token of this target is spelled out."""
        return self.named.search(text) is not None

    def look_alikes(self, text: str) -> bool:
        """Return whether the text holds something that resembles a special token but is not one of this target."""
        return any(not self.named.fullmatch(match.group()) for match in LOOK_ALIKE.finditer(text))

    def tools_in(self, *texts: str) -> bool:
        """Return whether a marker of a tool section is spelled out in any of the texts."""
        return any(self._tools.search(text) for text in texts)

    def section(self, text: str) -> Section | None:
        """Read the first tool section of a text; None when there is none, or it breaks the grammar of the format."""
        first = self._tools.search(text)
        if first is None or self._role_of[first.group()] not in ("tools_open", "call_open"):
            return None
        pieces: list[Piece] = []
        state, position, calls, closed = "", first.start(), 0, "tools_close" not in self.roles
        for gap, role, end in self._steps(text, position):
            if gap:
                if state in _TEXT_AFTER:
                    pieces.append(Piece(self._kind_after(state), None, gap))
                elif gap.strip():
                    break
                elif role is not None:
                    pieces.append(Piece("content", None, gap))
            if role is None:
                position = end if state in _TEXT_AFTER or not gap else position
                break
            if role not in _NEXT[state]:
                return None
            pieces.append(self.piece(role, "call_args_open" if role == "call_args" else None))
            state, position, calls = role, end, calls + (role == "call_open")
            if role == "tools_close":
                closed = True
                break
        if not calls:
            return None
        return Section(
            text[: first.start()],
            tuple(pieces),
            text[position:],
            calls,
            state if state in _TEXT_AFTER else None,
            closed,
        )

    def _steps(self, text: str, start: int) -> Iterator[tuple[str, str | None, int]]:
        """Yield the text before each marker, the role of the marker, and where it ends.

        The rest of the text comes last, without a role.
        """
        position = start
        for match in self._tools.finditer(text, start):
            yield text[position : match.start()], self._role_of[match.group()], match.end()
            position = match.end()
        yield text[position:], None, len(text)

    def _kind_after(self, role: str) -> str:
        return "call_id" if role == "call_open" and "call_args" in self.roles else "call_args"


_TEXT_AFTER = ("call_open", "call_args")
"""Markers that are followed by a call's own text."""

_NEXT = {
    "": ("tools_open", "call_open"),
    "tools_open": ("call_open",),
    "call_open": ("call_args", "call_close"),
    "call_args": ("call_close",),
    "call_close": ("call_open", "tools_close"),
}
"""Maps a marker to the markers that may follow it."""
