"""Token ids from the bytes that came with logprobs.

A sampled token is known by its bytes: no two ordinary tokens of the vocabulary have the same ones. Special tokens are
known by their text, which is not the text of any ordinary token. A token that holds a part of a character has bytes
that are not valid UTF-8; servers that report decoded text show nothing (or U+FFFD) for it, and the whole character with
its last part.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from pipeline.formats.completion.token_logprobs import logged_tokens
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer

_REPLACEMENT = "�".encode()
MAX_PARTS = 8
"""Longest run of tokens without readable bytes whose ids are searched for."""


class Vocabulary:
    """Maps bytes to ids of ordinary tokens, and texts to ids of special ones."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer) -> None:
        self._special = {text.encode(): token for text, token in record.special_tokens.items()}
        self._ordinary = {piece: token for token in range(record.vocab_size) if (piece := tokenizer.token_bytes(token))}

    def find(self, piece: bytes) -> int | None:
        """Return the id of the token with these bytes, or None."""
        token = self._ordinary.get(piece)
        return self._special.get(piece) if token is None else token

    def splits(self, piece: bytes, parts: int) -> Iterator[tuple[int, ...]]:
        """Yield each way to write bytes as exactly `parts` ordinary tokens."""
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


class SampledIds(NamedTuple):
    """The ids that one list of logprob entries gives."""

    ids: list[int | None]
    """One for each sampled token; None where its bytes leave a choice."""
    explicit: bool
    """True when the server named the ids themselves."""

    def certain(self) -> list[int] | None:
        """Return the ids when each is certain, else None."""
        certain = [token for token in self.ids if token is not None]
        return certain if len(certain) == len(self.ids) else None


def read_logprobs(logprobs: Any, vocabulary: Vocabulary) -> list[SampledIds]:
    """Read a choice's `logprobs`.

    They are one list for the whole answer, as most servers send it, or one each for reasoning and content.
    """
    return [
        SampledIds([*tokens.ids], True)
        if tokens.ids is not None
        else SampledIds(list(_from_bytes(tokens.pieces, vocabulary)), False)
        for tokens in logged_tokens(logprobs)
    ]


def concatenated(parts: Sequence[SampledIds]) -> SampledIds:
    """Join lists that follow each other."""
    return SampledIds([token for part in parts for token in part.ids], all(part.explicit for part in parts))


def _from_bytes(pieces: Sequence[bytes], vocabulary: Vocabulary) -> Iterator[int | None]:
    """Yield an id, or None, for each sampled token.

    A run of tokens without bytes is a part of the character that the next token completes.
    """
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
