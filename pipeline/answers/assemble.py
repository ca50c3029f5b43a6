"""Pieces of an answer to token ids: special tokens by id, each text encoded on its own with special tokens off.

Ids are kept as little-endian uint32 bytes, so that millions of them never become Python objects.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from pipeline.answers.readings.markers import Piece
from pipeline.formats.schema.tokens import Segment
from pipeline.model.tokenizer.tokenizer import Tokenizer

WIDTH = 4
"""Bytes of an id."""

Ahead = Mapping[int, bytes]
"""Ids of texts that were encoded ahead and cannot spell out a special token, by `id()` of the very text, which whoever made this keeps:
to find a text of some thousand characters by what it says takes as long as all else that is done with it, but for encoding."""

NOTHING: Ahead = MappingProxyType({})
"""No text is encoded yet."""


class Span(NamedTuple):
    """A stretch of ids of one kind, [start, end)."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Built:
    """Ids and their spans, in order, without gaps."""

    ids: bytes
    spans: tuple[Span, ...]

    def __len__(self) -> int:
        return len(self.ids) // WIDTH

    def billed(self, *, bills_end: bool) -> int:
        """Tokens that a provider bills who counts the end token, or does not."""
        return len(self) - (self.ended and not bills_end)

    @property
    def ended(self) -> bool:
        """Whether the end token stands last."""
        return bool(self.spans) and self.spans[-1].kind == "end"

    def tolist(self) -> list[int]:
        """Ids as Python integers."""
        return unpack(self.ids)

    def segments(self) -> list[Segment]:
        """Spans as the schema's segments."""
        return [Segment(*span) for span in self.spans]


def pack(ids: Sequence[int]) -> bytes:
    """Ids to little-endian uint32 bytes."""
    return np.asarray(ids, dtype="<u4").tobytes()


def unpack(buffer: bytes) -> list[int]:
    """Little-endian uint32 bytes to ids."""
    return [int(token) for token in np.frombuffer(buffer, dtype="<u4")]


def assemble(pieces: Iterable[Piece], encode: "Encoder") -> Built:
    """Place special tokens by id and encode the texts between them.

    Raises:
        InputError: a text holds a lone surrogate.

    """
    parts: list[bytes] = []
    spans: list[Span] = []
    position = 0
    for kind, token, text in pieces:
        part = token.to_bytes(WIDTH, "little") if token is not None else encode(text)
        if not part:
            continue
        end = position + len(part) // WIDTH
        if spans and spans[-1].kind == kind and token is None:
            spans[-1] = Span(kind, spans[-1].start, end)
        else:
            spans.append(Span(kind, position, end))
        parts.append(part)
        position = end
    return Built(b"".join(parts), tuple(spans))


class Encoder:
    """Encodes the texts of one answer; a text that several readings share is scanned and encoded once."""

    def __init__(self, tokenizer: Tokenizer, may_hold: Callable[[str], bool], ahead: Ahead = NOTHING) -> None:
        """Start with what was encoded ahead."""
        self._tokenizer = tokenizer
        self._may_hold = may_hold
        self._ahead = ahead
        self._known: dict[str, bytes] = {}
        self._marked: dict[str, bool] = {}

    def know(self, text: str, ids: Sequence[int]) -> None:
        """Take ids that are known otherwise as those of a text."""
        self._known[text] = pack(ids)

    def marked(self, text: str) -> bool:
        """Whether the text could spell out a special token, as `Markers.may_hold` has it."""
        if id(text) in self._ahead:
            return False
        marked = self._marked.get(text)
        if marked is None:
            marked = self._marked[text] = self._may_hold(text)
        return marked

    def __call__(self, text: str) -> bytes:
        """Ids of an ordinary text, as bytes."""
        known = self._ahead.get(id(text))
        if known is None:
            known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._tokenizer.encode_flat(text)
        return known
