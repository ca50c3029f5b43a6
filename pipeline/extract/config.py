"""`extract`."""

from typing import Literal

from pydantic import Field

from pipeline.schema.hidden import StoredDtype
from pipeline.section import Section


class ExtractSection(Section):
    """How the target's hidden states are taken and stored."""

    backend: Literal["transformers"]
    layers: list[int] | None = None
    """Auxiliary layers by input convention; null takes [2, n//2, n-3]."""
    dtype: StoredDtype
    """Of the stored states; float8_e4m3fn keeps one scale a token and layer."""
    compute_dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Of the forward pass."""
    device: str = "cpu"
    """A torch device, or auto: spread the model over all GPUs (transformers needs the package accelerate for it)."""
    threads: int | None = Field(2, ge=1)
    """CPU threads; fixed, so that the same machine gives the same bits. Null takes torch's default."""
    max_length: int = Field(ge=2)
    """Longest row in tokens."""
    on_long: Literal["cut", "leave_out"] = "cut"
    """What happens to a longer row; either way it is counted."""
    tokens_per_batch: int = Field(ge=1)
    shard_bytes: int = Field(ge=1024)
    """A shard has at most so many bytes, unless one batch has more, and mostly at least half; also what a killed run may lose."""
