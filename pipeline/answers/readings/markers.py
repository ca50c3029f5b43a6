"""Special tokens spelled out in a text: finding them, and reading a raw tool section."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.formats.schema.target import TargetRecord

LOOK_ALIKE = re.compile(r"<[|｜][^<>\s]{1,48}[|｜]>")
"""What resembles a special token of some model."""


_OPENINGS = ("<|", "<｜")
"""How special tokens of most models begin."""


def _stem(text: str) -> str:
    """A part of a special token's text that many share; none for names in square brackets, which play no role in an answer."""
    opening = next((start for start in _OPENINGS if text.startswith(start)), None)
    return opening or (text[1:].removeprefix("/") if text.startswith("<") else "")


class Piece(NamedTuple):
    """A stretch of an answer: one special token, or a text that is encoded on its own."""

    kind: str
    """Segment kind, as in `schema.tokens.Segment`."""
    token: int | None
    text: str
    """Text to encode; the special token's own text when `token` is set."""


class Section(NamedTuple):
    """A raw tool section found in a text."""

    before: str
    pieces: tuple[Piece, ...]
    after: str
    calls: int
    open_in: str | None
    """Role of the last marker when the section was cut inside a call; None when every call is closed."""
    closed: bool
    """Whether the section's own end is there, or the format has none."""

    def wrapped(self, markers: "Markers") -> tuple[Piece, ...] | None:
        """The pieces between the section's own markers, when a server may have dropped one or both; None when nothing is missing, or a call is cut."""
        if self.open_in is not None or self.closed or "tools_open" not in markers.roles:
            return None
        opening = () if self.pieces[0].kind == "tools_open" else (markers.piece("tools_open"),)
        return (*opening, *self.pieces, markers.piece("tools_close"))


def _alternation(texts: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


class Markers:
    """The special tokens of one target, as texts to look for."""

    def __init__(self, record: TargetRecord) -> None:
        self.roles = {role: (text, record.special_tokens[text]) for role, text in record.roles if text is not None}
        self._role_of = {text: role for role, (text, _) in self.roles.items()}
        self.named = _alternation(list(record.special_tokens))
        self._stems = [(stem[-1], stem) for stem in sorted({*map(_stem, record.special_tokens), *_OPENINGS} - {""})]
        self._tools = _alternation(
            [text for role, (text, _) in self.roles.items() if role.startswith(("tools_", "call_"))]
        )

    def text(self, role: str) -> str | None:
        """Text of the special token that plays a role, or None."""
        entry = self.roles.get(role)
        return entry[0] if entry else None

    def piece(self, role: str, kind: str | None = None) -> Piece:
        """The special token of a role, placed by id."""
        text, token = self.roles[role]
        return Piece(kind or role, token, text)

    def may_hold(self, text: str) -> bool:
        """Whether a special token in angle brackets, or what looks like one, could be spelled out: a cheap test, never wrong with False."""
        for last, stem in self._stems:  # noqa: SIM110 -- asked for every text; a generator would take a third of the time
            if last in text and stem in text:  # a single character is found at once
                return True
        return False

    def literals(self, text: str) -> bool:
        """Whether a special token of this target is spelled out."""
        return self.named.search(text) is not None

    def look_alikes(self, text: str) -> bool:
        """Whether something resembles a special token and is none of this target's."""
        return any(not self.named.fullmatch(match.group()) for match in LOOK_ALIKE.finditer(text))

    def section(self, text: str) -> Section | None:
        """Find the first tool section of a text; None when there is none, or what is there breaks the format's grammar."""
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
        """Text before each marker, the marker's role, and where it ends; last the rest of the text, with no role."""
        position = start
        for match in self._tools.finditer(text, start):
            yield text[position : match.start()], self._role_of[match.group()], match.end()
            position = match.end()
        yield text[position:], None, len(text)

    def _kind_after(self, role: str) -> str:
        return "call_id" if role == "call_open" and "call_args" in self.roles else "call_args"


_TEXT_AFTER = ("call_open", "call_args")
"""Markers after which a call's own text stands."""

_NEXT = {
    "": ("tools_open", "call_open"),
    "tools_open": ("call_open",),
    "call_open": ("call_args", "call_close"),
    "call_args": ("call_close",),
    "call_close": ("call_open", "tools_close"),
}
"""Which marker may follow which."""
