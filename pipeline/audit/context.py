"""What every check may know besides the rows: the target, its vocabulary as tables, and the dataset's expectations."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.audit.config import ExpectSection, TokenPrice
from pipeline.audit.heldout import Heldout
from pipeline.schema.target import TargetRecord
from pipeline.tokens import Tokenizer

TokenPrices = dict[str, list[TokenPrice]]
"""By provider's name; one with several endpoints has several prices."""


ProviderTags = dict[str, list[str]]
"""By provider's name: how requests and the policy call its endpoints (`novita/fp8` of NovitaAI)."""


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
    """The same as an Arrow binary array, from which the bytes of many ids are taken at once."""
    ordinary: NDArray[np.bool_]
    """Whether an id stands for bytes of text; [vocab_size]."""
    heldout: Heldout | None = None
    """Evaluation prompts that must not be trained on, where they are given."""
    prices: TokenPrices = field(default_factory=dict)
    """What each provider's endpoints charge, where that is known."""
    tags: ProviderTags = field(default_factory=dict)
    """What else each provider is called, where that is known."""

    def is_ordinary(self, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether each id stands for bytes of text; no id outside the vocabulary does."""
        size = len(self.pieces)
        return np.asarray(self.ordinary[np.clip(ids, 0, size - 1)] & (ids >= 0) & (ids < size))

    def bytes_of(self, ids: NDArray[np.int32], ordinary: NDArray[np.bool_]) -> tuple[bytes, NDArray[np.int32]]:
        """Bytes of the ordinary ids joined, and where each id's bytes begin; [len(ids) + 1], the last one the end."""
        taken = self.table.take(pa.array(ids, mask=~ordinary))
        _, offsets, data = taken.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int32, count=len(ids) + 1) if len(ids) else np.zeros(1, dtype=np.int32)
        return (data.to_pybytes() if data is not None else b""), bounds

    def role(self, name: str) -> int | None:
        """Id of the token that plays a role, or None where the format has none."""
        return self.record.role_id(name)


def make_context(
    record: TargetRecord,
    tokenizer: Tokenizer,
    expect: ExpectSection | None = None,
    allow: list[str] | None = None,
    deny: list[str] | None = None,
    heldout: Heldout | None = None,
    prices: TokenPrices | None = None,
    tags: ProviderTags | None = None,
) -> Context:
    """Tabulate a target's vocabulary once; a few hundred milliseconds."""
    pieces = [tokenizer.token_bytes(token) for token in range(record.vocab_size)]
    ordinary = np.fromiter(map(bool, pieces), dtype=np.bool_, count=len(pieces))
    return Context(
        record,
        tokenizer,
        expect or ExpectSection(),
        tuple(allow or ()),
        tuple(deny or ()),
        pieces,
        pa.array(pieces, type=pa.binary()),
        ordinary,
        heldout,
        prices or {},
        tags or {},
    )
