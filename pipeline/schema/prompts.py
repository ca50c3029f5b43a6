"""`build/<dataset>/prompts.jsonl`: one prompt a line, in the order of the source."""

from typing import Any

from pipeline.section import Section


class Prompt(Section):
    """What is asked: chat messages, and the tools on offer."""

    id: str
    """The row's own id, else a hash of its content."""
    messages: list[dict[str, Any]]
    """Chat messages as the API takes them; the last one is not the assistant's."""
    tools: list[dict[str, Any]] | None = None
    """Function tools in OpenAI form, or null."""
