"""Vocabularies that splintr-rs bundles."""

from collections.abc import Sequence

import numpy as np

from pipeline.core.errors import TokenizerError
from pipeline.formats.schema.target import TokenizerSpec
from pipeline.model.tokenizer.backend import pack_ids

_UINT32 = np.dtype("<u4")


class SplintrBackend:
    """A bundled vocabulary. Only `encode_ordinary` is safe: splintr's other calls parse special tokens in the text."""

    def __init__(self, spec: TokenizerSpec) -> None:
        import splintr

        try:
            loaded = splintr.Tokenizer.from_pretrained(spec.name)
        except ValueError as error:
            raise TokenizerError(f"target.tokenizer.name {spec.name!r}: {error}") from error
        self.special_ids = dict(loaded.special_tokens())
        self.encode = loaded.encode_ordinary
        self.encode_flat_unchecked = loaded.encode_flat
        self._decode_token = loaded.decode_token_bytes
        self._first_special = self._find_first_special()

    def _find_first_special(self) -> int:
        """Return the id from which on all tokens are special; 0 if ordinary tokens lie among the special ones."""
        special = set(self.special_ids.values())
        first, last = min(special, default=0), max(special, default=0)
        ordinary = any(token not in special and self.token_bytes(token) for token in range(first, last))
        return 0 if ordinary else first

    def encode_flat(self, text: str) -> bytes:
        """Return the ids without a Python object for each.

        splintr's flat call parses special tokens. They lie above all ordinary ones in the bundled vocabularies, so the
        largest id tells whether the call met one; only then the text is encoded again with special tokens off.
        """
        if not self._first_special:
            return pack_ids(self.encode(text))
        flat: bytes = self.encode_flat_unchecked(text)
        return flat if _largest(flat) < self._first_special else pack_ids(self.encode(text))

    def encode_flat_batch(self, texts: Sequence[str]) -> list[bytes]:
        """Return `encode_flat` of each text, with one check for all of them."""
        flats = list(map(self.encode_flat_unchecked, texts))
        return flats if _largest(b"".join(flats)) < self._first_special else list(map(self.encode_flat, texts))

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; empty for an id that the vocabulary does not have."""
        try:
            return bytes(self._decode_token(token))
        except ValueError:  # a hole in the vocabulary
            return b""


def _largest(flat: bytes) -> int:
    """Return the largest id, or -1 for none; `np.maximum.reduce` takes half the time of `max`."""
    return int(np.maximum.reduce(np.frombuffer(flat, _UINT32))) if flat else -1
