"""`datasets.<name>.prompts`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline.core.sections import Section


class ColumnsSection(Section):
    """Which column of the source holds what; exactly one of the first three is the prompt, and null is not there."""

    messages: str | None = "messages"
    """A list of {role, content} messages."""
    conversations: str | None = None
    """A list of ShareGPT turns {from, value}."""
    prompt: str | None = None
    """The user's text, alone."""
    system: str | None = None
    """A text that goes first as a system message."""
    tools: str | None = "tools"
    """Function tools in OpenAI form, or such a list as JSON text."""
    id: str | None = "id"
    """The row's own name."""


class PromptsSection(Section):
    """Where a dataset's prompts come from."""

    path: str
    """A file under data/, or hf://OWNER/NAME for a dataset of the Hugging Face hub (needs the extra `hub`)."""
    format: Literal["auto", "jsonl", "parquet"] = "auto"
    """Auto goes by the name: .jsonl, .jsonl.gz, .jsonl.zst, .parquet."""
    columns: ColumnsSection = ColumnsSection()
    drop_last_answer: bool = False
    """Leave out a last assistant message (and what follows it), so that the model answers in its place."""
    limit: int | None = Field(None, ge=1)
    """Take the first so many prompts; null takes all."""
    sample: int | None = Field(None, ge=1)
    """Take so many prompts by chance, in the order of the source; null takes all. Before `limit`."""
    seed: int = 0
    """Of the sample: the same seed takes the same prompts."""
    revision: str | None = None
    """Commit of a hub dataset, 40 hex digits: a build must not change because someone else's did."""
    split: str = "train"
    """Split of a hub dataset."""
    subset: str | None = None
    """Configuration of a hub dataset."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        columns = self.columns
        if sum(name is not None for name in (columns.messages, columns.conversations, columns.prompt)) != 1:
            raise ValueError(
                "columns: exactly one of messages, conversations and prompt must be named; set the others to null"
            )
        if self.path.startswith("hf://") and not (
            self.revision and len(self.revision) == 40 and set(self.revision) <= set("0123456789abcdef")
        ):
            raise ValueError("revision: a hub dataset needs the commit that is meant, 40 hex digits")
        return self
