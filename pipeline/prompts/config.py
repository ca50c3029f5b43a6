"""`datasets.<name>.prompts`."""

from pydantic import Field

from pipeline.section import Section


class PromptsSection(Section):
    """Where a dataset's prompts come from."""

    path: str
    """JSONL file under data/: one {messages, tools?, id?} a line."""
    limit: int | None = Field(None, ge=1)
    """Take the first so many prompts; null takes all."""
