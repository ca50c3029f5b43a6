"""Config section `datasets.<name>.prompts`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline.core.sections import Section


class ColumnsSection(Section):
    """Columns of the source; exactly one of the first three holds the prompt. Null names no column."""

    messages: str | None = "messages"
    """A list of {role, content} messages."""
    conversations: str | None = None
    """A list of ShareGPT turns {from, value}."""
    prompt: str | None = None
    """The user's text; the whole prompt is one message."""
    system: str | None = None
    """A text that becomes the first message, with the role system."""
    tools: str | None = "tools"
    """A list of function tools in OpenAI's form, or its JSON text."""
    id: str | None = "id"
    """The row's own name."""


class PromptsSection(Section):
    """The source of a dataset's prompts."""

    path: str
    """A file under data/, or hf://OWNER/NAME for a dataset of the Hugging Face hub (needs the extra `hub`)."""
    format: Literal["auto", "jsonl", "parquet"] = "auto"
    """Auto goes by the file's name: .jsonl, .jsonl.gz, .jsonl.zst, .ndjson, .parquet."""
    columns: ColumnsSection = ColumnsSection()
    drop_last_answer: bool = False
    """Leave out the last assistant message and everything after it, so that the model answers in its place."""
    limit: int | None = Field(None, ge=1)
    """Number of prompts to take from the beginning; null takes all."""
    sample: int | None = Field(None, ge=1)
    """Number of prompts to take at random, in the order of the source; null takes all. Applied before `limit`."""
    seed: int = 0
    """Seed of the sample: the same seed takes the same prompts."""
    revision: str | None = None
    """Commit of a hub dataset, 40 hex digits: a build must not change because someone changed the dataset."""
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
            raise ValueError("revision: a hub dataset needs a commit, 40 hex digits")
        return self
