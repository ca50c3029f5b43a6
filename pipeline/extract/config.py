"""`extract`."""

from typing import Literal

from pydantic import Field

from pipeline.section import Section


class ExtractSection(Section):
    """How the target's hidden states are taken and stored."""

    backend: Literal["transformers"]
    layers: list[int] | None = None
    """Auxiliary layers by input convention; null takes [2, n//2, n-3]."""
    dtype: Literal["bfloat16", "float16", "float32"]
    """Of the stored states."""
    compute_dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Of the forward pass."""
    device: str = "cpu"
    max_length: int = Field(ge=2)
    """Longest row in tokens."""
    on_long: Literal["cut", "leave_out"] = "cut"
    """What happens to a longer row; either way it is counted."""
    tokens_per_batch: int = Field(ge=1)
    shard_bytes: int = Field(ge=1024)
