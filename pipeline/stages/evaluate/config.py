"""Section `evaluate`."""

from typing import Literal

from pydantic import Field

from pipeline.core.sections import Section


class EvaluateSection(Section):
    """Greedy speculative decoding on prompts that are not in the training data."""

    path: str
    """JSONL file of held-out prompts under data/, one {messages, tools?, dataset?} a line."""
    limit: int | None = Field(None, ge=1)
    """Number of prompts to take from the beginning; null takes all."""
    anchors: int = Field(8, ge=1)
    """Prompts, spread over the file, for the two anchors: an oracle, which must reach the maximum, and an untrained
    drafter, about 1."""
    draft_tokens: int = Field(ge=1)
    """Tokens drafted before each verification."""
    max_new_tokens: int = Field(ge=1)
    batch: int = Field(96, ge=1)
    """Prompts decoded together."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the target. In float32 the output must equal plain greedy decoding; in narrower types near-ties may flip
    and are counted."""
    device: str = "cpu"
    threads: int | None = Field(2, ge=1)
    """CPU threads; fixed, so that the same machine gives the same bits. Null takes torch's default."""
