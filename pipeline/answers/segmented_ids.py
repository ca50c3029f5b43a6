"""Token ids of an answer with the kind of each stretch, and how pieces of text become such ids.

Special tokens are placed by id; each text between them is encoded on its own, with special tokens off. Ids are kept as
little-endian uint32 bytes, so that millions of them never become Python objects.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.answers.readings.markers import Piece
from pipeline.model.tokenizer.tokenizer import Tokenizer

ID_BYTES = 4
"""Bytes of a packed id."""

EncodedTexts = Sequence[tuple[str, bytes]]
"""Texts of one answer that cannot spell out a special token, each with its packed ids: at most two, the reasoning and
the content."""


class Span(NamedTuple):
    """A stretch of ids of one kind, [start, end)."""

    kind: str
    """Segment kind, as in `schema.tokens.Segment`."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SegmentedIds:
    """Ids and their spans, in order, without gaps."""

    ids: bytes
    """Little-endian uint32."""
    spans: tuple[Span, ...]

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self.ids) // ID_BYTES

    def billed(self, *, bills_end: bool) -> int:
        """Return how many tokens a provider bills, when it bills the end token or when it does not."""
        return len(self) - (self.ended and not bills_end)

    @property
    def ended(self) -> bool:
        """True when the last id is the end token."""
        return bool(self.spans) and self.spans[-1].kind == "end"

    def tolist(self) -> list[int]:
        """Ids as Python integers."""
        return unpack(self.ids)


def pack(ids: Sequence[int]) -> bytes:
    """Ids to little-endian uint32 bytes."""
    return np.asarray(ids, dtype="<u4").tobytes()


def unpack(buffer: bytes) -> list[int]:
    """Little-endian uint32 bytes to ids."""
    return [int(token) for token in np.frombuffer(buffer, dtype="<u4")]


def assemble(pieces: Iterable[Piece], encode: "Encoder") -> SegmentedIds:
    """Place special tokens by id and encode the texts between them; neighbouring texts of one kind share a span.

    Raises:
        InputError: a text holds a lone surrogate.

    """
    parts: list[bytes] = []
    spans: list[Span] = []
    position = 0
    for kind, token, text in pieces:
        part = token.to_bytes(ID_BYTES, "little") if token is not None else encode(text)
        if not part:
            continue
        end = position + len(part) // ID_BYTES
        if spans and spans[-1].kind == kind and token is None:
            spans[-1] = Span(kind, spans[-1].start, end)
        else:
            spans.append(Span(kind, position, end))
        parts.append(part)
        position = end
    return SegmentedIds(b"".join(parts), tuple(spans))


class Encoder:
    """Encodes the texts of one answer; a text that several readings share is scanned and encoded once."""

    def __init__(self, tokenizer: Tokenizer, may_hold: Callable[[str], bool], encoded: EncodedTexts = ()) -> None:
        """Take the texts that are encoded already.

        They are few and are compared one by one: Python tells the same string from another without reading it, while a
        dictionary would first hash thousands of characters.
        """
        self._tokenizer = tokenizer
        self._may_hold = may_hold
        self._encoded = encoded
        self._ids: dict[str, bytes] = {}
        self._marked: dict[str, bool] = {}

    def set_ids(self, text: str, ids: Sequence[int]) -> None:
        """Use these ids for a text: the evidence says that the model emitted them."""
        self._ids[text] = pack(ids)

    def marked(self, text: str) -> bool:
        """Return whether the text could spell out a special token, as `Markers.may_hold` decides."""
        for encoded_text, _ in self._encoded:
            if encoded_text == text:
                return False
        marked = self._marked.get(text)
        if marked is None:
            marked = self._marked[text] = self._may_hold(text)
        return marked

    def __call__(self, text: str) -> bytes:
        """Return the packed ids of an ordinary text.

        Raises:
            InputError: the text holds a lone surrogate.

        """
        for encoded_text, ids in self._encoded:
            if encoded_text == text:
                return ids
        known_ids = self._ids.get(text)
        if known_ids is None:
            known_ids = self._ids[text] = self._tokenizer.encode_flat(text)
        return known_ids
