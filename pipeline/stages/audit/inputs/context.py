"""The context of all checks: the target, tables of its vocabulary, and what the dataset expects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.config import ExpectSection
from pipeline.stages.audit.inputs.endpoints import NO_ENDPOINTS, Endpoints
from pipeline.stages.audit.inputs.heldout import Heldout

CONTROL, REPLACEMENT = 1, 2
"""Bits of `Context.suspects`."""
_ANYTHING = ExpectSection()
_C0 = bytes([*range(9), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F])


@dataclass(frozen=True)
class Context:
    """Facts that stay the same for a whole audit."""

    record: TargetRecord
    tokenizer: Tokenizer
    expect: ExpectSection
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    pieces: list[bytes]
    """[vocab_size]: bytes of each id; empty for special and reserved ids."""
    table: Any
    """[vocab_size + 1]: the same as an Arrow binary array, to take many at once; the last is empty, for ids outside."""
    ordinary: NDArray[np.bool_]
    """[vocab_size + 1]: whether an id has text; the last entry is for ids outside the vocabulary."""
    suspects: NDArray[np.uint8]
    """[vocab_size + 1]: CONTROL and REPLACEMENT bits of each id."""
    heldout: Heldout | None = None
    """Evaluation prompts that nobody may train on; None where they are not given."""
    endpoints: Endpoints = NO_ENDPOINTS
    """Prices and tags of the providers' endpoints."""

    def _places(self, ids: NDArray[np.int32]) -> NDArray[np.uint32]:
        """Return the index of each id in the tables; ids outside the vocabulary share the last entry."""
        unsigned = ids.view(np.uint32)  # a negative id becomes a large one
        return np.minimum(unsigned, np.uint32(len(self.pieces)))

    def is_ordinary(self, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return whether each id has text; an id outside the vocabulary has none. [len(ids)]."""
        return np.asarray(self.ordinary.take(self._places(ids)))

    def may_hold(self, ids: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return the CONTROL and REPLACEMENT bits of each id; [len(ids)]."""
        return np.asarray(self.suspects.take(self._places(ids)))

    def bytes_of(self, ids: NDArray[np.int32]) -> tuple[bytes, NDArray[np.int32]]:
        """Return the bytes of all ids, joined, and the bounds of each id's bytes in them; [len(ids) + 1]."""
        taken = self.table.take(pa.array(self._places(ids)))
        _, offsets, data = taken.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int32, count=len(ids) + 1) if len(ids) else np.zeros(1, dtype=np.int32)
        return (b"" if data is None else data.to_pybytes()), bounds

    def role(self, name: str) -> int | None:
        """Return the id of the token with a role, or None where the chat format has none."""
        return self.record.role_id(name)


def _suspects(pieces: list[bytes], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the CONTROL and REPLACEMENT bits of each id, [len(pieces)].

    CONTROL: it has a byte of C0, DEL, or the first byte of C1. REPLACEMENT: it has the last byte of U+FFFD.
    """
    bits = np.zeros(256, dtype=np.uint8)
    bits[[*_C0, 0xC2]] = CONTROL
    bits[0xBD] = REPLACEMENT
    suspects = np.zeros(len(pieces), dtype=np.uint8)
    with_bytes = np.flatnonzero(lengths)
    if len(with_bytes):
        suspects[with_bytes] = np.bitwise_or.reduceat(
            bits[np.frombuffer(b"".join(pieces), dtype=np.uint8)], (np.cumsum(lengths) - lengths)[with_bytes]
        )
    return suspects


def make_context(
    record: TargetRecord,
    tokenizer: Tokenizer,
    expect: ExpectSection = _ANYTHING,
    allow: Sequence[str] = (),
    deny: Sequence[str] = (),
    heldout: Heldout | None = None,
    endpoints: Endpoints = NO_ENDPOINTS,
) -> Context:
    """Make the context of an audit; by default the dataset expects nothing, and any provider may answer."""
    pieces = tokenizer.all_token_bytes()
    lengths = np.array([*map(len, pieces), 0], dtype=np.int64)
    return Context(
        record,
        tokenizer,
        expect,
        tuple(allow),
        tuple(deny),
        pieces,
        pa.array([*pieces, b""], type=pa.binary()),
        lengths > 0,
        _suspects([*pieces, b""], lengths),
        heldout,
        endpoints,
    )
