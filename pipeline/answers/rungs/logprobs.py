"""Token ids from the bytes that came with logprobs.

A sampled token is known by its bytes: the vocabulary has no two ordinary tokens with the same ones. Special tokens are
known by their text, which no ordinary token has. A token that holds part of a character has bytes that are no UTF-8;
servers that report decoded text instead show nothing (or U+FFFD) for it, and the whole character with the last part.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer

_ID_PREFIX = "token_id:"
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
    if not isinstance(logprobs, dict):
        return []
    direct = logprobs.get("token_ids")
    if isinstance(direct, list) and direct and all(type(token) is int for token in direct):
        return [Found(direct, True)]
    tokens = logprobs.get("tokens")
    if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
        found = _entries([{"token": token} for token in tokens], vocabulary)
        return [found] if found is not None else []
    lists = (_entries(logprobs.get(key), vocabulary) for key in ("reasoning_content", "reasoning", "content"))
    return [entry for entry in lists if entry is not None]


def joined(parts: Sequence[Found]) -> Found:
    """Lists that follow each other, as one."""
    return Found([token for part in parts for token in part.ids], all(part.explicit for part in parts))


def _entries(entries: Any, vocabulary: Vocabulary) -> Found | None:
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        return None
    named = [_named_id(entry) for entry in entries]
    if all(token is not None for token in named):
        return Found(named, True)
    return Found(list(_from_bytes([_bytes(entry) for entry in entries], vocabulary)), False)


def _named_id(entry: dict[str, Any]) -> int | None:
    if type(entry.get("token_id")) is int:
        return int(entry["token_id"])
    token = entry.get("token")
    if isinstance(token, str) and token.startswith(_ID_PREFIX) and token[len(_ID_PREFIX) :].isdecimal():
        return int(token[len(_ID_PREFIX) :])
    return None


def _bytes(entry: dict[str, Any]) -> bytes:
    """The entry's bytes; empty where the server had none to show."""
    raw, token = entry.get("bytes"), entry.get("token")
    if isinstance(raw, list) and all(type(b) is int and 0 <= b < 256 for b in raw):
        return bytes(raw)
    try:
        return token.encode() if isinstance(token, str) else b""
    except UnicodeEncodeError:
        return b""


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
