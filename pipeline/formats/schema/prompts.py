"""`build/<dataset>/prompts.jsonl`: one prompt a line, in the order of the source; and its summary `prompts.json`."""

from typing import Any, Literal

from pydantic import Field

from pipeline.core.sections import Section


class Prompt(Section):
    """What is asked: chat messages, and the tools on offer."""

    id: str = Field(pattern=r"^[A-Za-z0-9_.:@+=-]{1,200}$")
    """The row's own id, else a hash of its content. Never a path: only letters, digits and _ . : @ + = -"""
    messages: list[dict[str, Any]]
    """Chat messages as the API takes them; the last one is not the assistant's."""
    tools: list[dict[str, Any]] | None = None
    """Function tools in OpenAI form, or null."""


class PromptsSummary(Section):
    """How the rows of the source became prompts; `rows` is `prompts` + `duplicates` + `left_out`."""

    version: Literal[1] = 1
    rows: int
    """Rows read from the source."""
    prompts: int
    duplicates: int
    """Rows left out because an earlier one has the same id and content."""
    left_out: int
    """Rows outside `sample` and `limit`."""
    same_content: int
    """Prompts that ask what an earlier one asks, under another id: kept, and paid for once."""
    with_tools: int
    unused: dict[str, int] = Field(default_factory=dict)
    """Columns of the source that no prompt takes, with the number of rows that have them."""
    turns: dict[str, int]
    """Prompts by the number of their messages."""
