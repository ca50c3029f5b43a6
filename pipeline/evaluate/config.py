"""`evaluate`."""

from pydantic import Field

from pipeline.section import Section


class EvaluateSection(Section):
    """Greedy speculative decoding on prompts that training never saw."""

    path: str
    """JSONL of held-out prompts under data/: {messages, tools?, dataset?} a line."""
    limit: int | None = Field(None, ge=1)
    draft_tokens: int = Field(ge=1)
    """Tokens drafted before each verification."""
    max_new_tokens: int = Field(ge=1)
    device: str = "cpu"
