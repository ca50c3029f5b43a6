"""Token ids from the bytes that came with logprobs.

A sampled token is known by its bytes: the vocabulary has no two ordinary tokens with the same ones. Special tokens are
known by their text, which no ordinary token has. A token that holds part of a character has bytes that are no UTF-8;
servers that report decoded text instead show nothing (or U+FFFD) for it, and the whole character with the last part.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from pipeline.formats.completion.token_logprobs import logged_tokens
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.loading import Tokenizer

_REPLACEMENT = "�".encode()
MAX_PARTS = 8
"""Longest run of tokens without readable bytes that is worth a search."""


class Vocabulary:
    """Bytes to id, for ordinary tokens; text to id, for special ones."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer) -> None:
        self._special = {text.encode(): token for text, token in record.special_tokens.items()}
        self._ordinary = {piece: token for token in range(record.vocab_size) if (piece := tokenizer.token_bytes(token))}

    def find(self, piece: bytes) -> int | None:
        """Id of the token with these bytes, or None."""
        token = self._ordinary.get(piece)
        return self._special.get(piece) if token is None else token

    def splits(self, piece: bytes, parts: int) -> Iterator[tuple[int, ...]]:
        """Every way to write bytes as exactly so many ordinary tokens."""
        if parts == 1:
            token = self._ordinary.get(piece)
            if token is not None:
                yield (token,)
            return
        for cut in range(1, len(piece) - parts + 2):
            token = self._ordinary.get(piece[:cut])
            if token is not None:
                for rest in self.splits(piece[cut:], parts - 1):
                    yield (token, *rest)


class Found(NamedTuple):
    """What one list of entries says."""

    ids: list[int | None]
    """An id for each sampled token; None where its bytes leave a choice."""
    explicit: bool
    """Whether the server named the ids themselves."""

    def certain(self) -> list[int] | None:
        """All ids, when each is certain."""
        known = [token for token in self.ids if token is not None]
        return known if len(known) == len(self.ids) else None


def found_in(logprobs: Any, vocabulary: Vocabulary) -> list[Found]:
    """What a choice's `logprobs` say: one list over the whole answer, as most servers send it, or one each for reasoning and content."""
    return [
        Found([*tokens.ids], True)
        if tokens.ids is not None
        else Found(list(_from_bytes(tokens.pieces, vocabulary)), False)
        for tokens in logged_tokens(logprobs)
    ]


def joined(parts: Sequence[Found]) -> Found:
    """Lists that follow each other, as one."""
    return Found([token for part in parts for token in part.ids], all(part.explicit for part in parts))


def _from_bytes(pieces: Sequence[bytes], vocabulary: Vocabulary) -> Iterator[int | None]:
    """An id, or None, for each sampled token. A run of tokens without bytes belongs to the character that the next one completes."""
    silent = 0
    for piece in pieces:
        if not piece or (not piece.replace(_REPLACEMENT, b"") and vocabulary.find(piece) is None):
            silent += 1
        elif not silent:
            yield vocabulary.find(piece)
        else:
            ways = [] if silent >= MAX_PARTS else list(islice(vocabulary.splits(piece, silent + 1), 2))
            yield from ways[0] if len(ways) == 1 else [None] * (silent + 1)
            silent = 0
    yield from [None] * silent
