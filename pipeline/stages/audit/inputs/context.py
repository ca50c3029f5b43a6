"""What every check may know besides the rows: the target, its vocabulary as tables, and the dataset's expectations."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.config import ExpectSection
from pipeline.stages.audit.inputs.endpoints import Endpoints
from pipeline.stages.audit.inputs.heldout import Heldout

CONTROL, REPLACEMENT = 1, 2
"""Bits of `Context.suspects`."""
_C0 = bytes([*range(9), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F])


@dataclass(frozen=True)
class Context:
    """Fixed for a whole audit."""

    record: TargetRecord
    tokenizer: Tokenizer
    expect: ExpectSection
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    pieces: list[bytes]
    """Bytes of each id below the vocabulary's size; empty for special and reserved ids."""
    table: Any
    """The same as an Arrow binary array, from which the bytes of many ids are taken at once; one entry more, empty, for all ids outside."""
    ordinary: NDArray[np.bool_]
    """Whether an id stands for bytes of text; [vocab_size + 1], the last one for all ids outside."""
    suspects: NDArray[np.uint8]
    """CONTROL and REPLACEMENT bits of each id; [vocab_size + 1]."""
    heldout: Heldout | None = None
    """Evaluation prompts that must not be trained on, where they are given."""
    endpoints: Endpoints = field(default_factory=Endpoints)
    """What the providers charge and are called, where that is known."""

    def _places(self, ids: NDArray[np.int32]) -> NDArray[np.uint32]:
        """Index of each id in the tables; whatever is outside the vocabulary shares the last entry."""
        return np.minimum(
            ids.view(np.uint32), np.uint32(len(self.pieces))
        )  # as unsigned, what is negative is too large

    def is_ordinary(self, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether each id stands for bytes of text; no id outside the vocabulary does."""
        return np.asarray(self.ordinary.take(self._places(ids)))

    def may_hold(self, ids: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Which of CONTROL and REPLACEMENT each id's bytes may be a part of; [len(ids)]."""
        return np.asarray(self.suspects.take(self._places(ids)))

    def bytes_of(self, ids: NDArray[np.int32]) -> tuple[bytes, NDArray[np.int32]]:
        """Bytes of all ids joined, and where each id's bytes begin; [len(ids) + 1], the last one the end."""
        taken = self.table.take(pa.array(self._places(ids)))
        _, offsets, data = taken.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int32, count=len(ids) + 1) if len(ids) else np.zeros(1, dtype=np.int32)
        return (b"" if data is None else data.to_pybytes()), bounds

    def role(self, name: str) -> int | None:
        """Id of the token that plays a role, or None where the format has none."""
        return self.record.role_id(name)


def _suspects(pieces: list[bytes], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Whether each id's bytes may be a part of a control character (C0 or DEL, or the first byte of C1) or of U+FFFD (its last byte)."""
    bits = np.zeros(256, dtype=np.uint8)
    bits[[*_C0, 0xC2]] = CONTROL
    bits[0xBD] = REPLACEMENT
    found = np.zeros(len(pieces), dtype=np.uint8)
    some = np.flatnonzero(lengths)
    if len(some):
        found[some] = np.bitwise_or.reduceat(
            bits[np.frombuffer(b"".join(pieces), dtype=np.uint8)], (np.cumsum(lengths) - lengths)[some]
        )
    return found


def make_context(
    record: TargetRecord,
    tokenizer: Tokenizer,
    expect: ExpectSection | None = None,
    allow: list[str] | None = None,
    deny: list[str] | None = None,
    heldout: Heldout | None = None,
    endpoints: Endpoints | None = None,
) -> Context:
    """Tabulate a target's vocabulary once."""
    pieces = tokenizer.all_token_bytes()
    lengths = np.array([*map(len, pieces), 0], dtype=np.int64)
    return Context(
        record,
        tokenizer,
        expect or ExpectSection(),
        tuple(allow or ()),
        tuple(deny or ()),
        pieces,
        pa.array([*pieces, b""], type=pa.binary()),
        lengths > 0,
        _suspects([*pieces, b""], lengths),
        heldout,
        endpoints or Endpoints(),
    )
