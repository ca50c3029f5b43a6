"""The interface of a tokenizer library, and the part that libraries returning Python lists share."""

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol


class TokenizerBackend(Protocol):
    """One tokenizer library with one vocabulary: ordinary text to ids, ids to bytes, and the named special tokens."""

    special_ids: dict[str, int]
    """Text of each special token that the library knows, to its id."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` with special tokens off."""

    def encode_flat(self, text: str) -> bytes:
        """Return the same ids as little-endian uint32 bytes."""

    def encode_flat_batch(self, texts: Sequence[str]) -> list[bytes]:
        """Return `encode_flat` of each text."""

    def encode_flat_unchecked(self, text: str) -> bytes:
        """Return the fastest encoding: equal to `encode_flat` unless the result holds a special token."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of an ordinary token; empty for a special or unknown one."""


def pack_ids(ids: Sequence[int]) -> bytes:
    """Return ids as little-endian uint32 bytes."""
    return struct.pack(f"<{len(ids)}I", *ids)


class ListBackend(ABC):
    """The flat encodings of a library that only returns Python lists: each list is packed."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` with special tokens off."""

    def encode_flat(self, text: str) -> bytes:
        """Return the same ids as little-endian uint32 bytes."""
        return pack_ids(self.encode(text))

    def encode_flat_batch(self, texts: Sequence[str]) -> list[bytes]:
        """Return `encode_flat` of each text."""
        return list(map(self.encode_flat, texts))

    def encode_flat_unchecked(self, text: str) -> bytes:
        """Return `encode_flat`: a list has no faster form."""
        return self.encode_flat(text)
