"""`build/<dataset>/prompts.jsonl`, one prompt a line, and its summary `prompts.json`."""

from typing import Any, Literal

from pydantic import Field

from pipeline.core.sections import Section


class Prompt(Section):
    """Chat messages to answer, and the tools that may be called."""

    id: str = Field(pattern=r"^[A-Za-z0-9_.:@+=-]{1,200}$")
    """The row's own id, else a hash of its content. It cannot be a path: only letters, digits and _ . : @ + = -"""
    messages: list[dict[str, Any]]
    """Chat messages as the API takes them; the last one is not the assistant's."""
    tools: list[dict[str, Any]] | None = None
    """Function tools in OpenAI form, or null."""


class PromptsSummary(Section):
    """Counts of the source's rows and prompts; `rows` is `prompts` + `duplicates` + `left_out`."""

    version: Literal[1] = 1
    rows: int
    """Rows read from the source."""
    prompts: int
    duplicates: int
    """Rows left out because an earlier one has the same id and content."""
    left_out: int
    """Rows outside `sample` and `limit`."""
    same_content: int
    """Prompts with the content of an earlier one under another id: kept, and paid for once."""
    with_tools: int
    unused: dict[str, int] = Field(default_factory=dict)
    """Columns of the source that prompts do not use, with the number of rows that have them."""
    turns: dict[str, int]
    """Prompts by the number of their messages."""
