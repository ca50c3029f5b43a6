"""A target model: `build/target/fingerprint.json`, and the part of `conf/target/` that it repeats."""

from typing import Literal

from pydantic import Field

from pipeline.core.sections import Section

ChatFormat = Literal["kimi_k25", "kimi_k2", "qwen3", "deepseek_v3"]
"""Every chat format that is known."""


class TokenizerSpec(Section):
    """A tokenizer, and its limits."""

    backend: Literal["splintr", "transformers", "tiktoken"]
    """`splintr`: a vocabulary bundled with splintr-rs; `transformers`: a local folder or hub id; `tiktoken`: a local
    rank file."""
    name: str
    """The vocabulary's name, the folder or hub id, or the path of the rank file."""
    sha256: str | None = None
    """Digest of every id's bytes, the special tokens and the split pattern; checked if given."""
    size: int | None = Field(None, ge=1)
    """Number of ids of the model's own tokenizer. Later rows of the model are padding, and special tokens that a
    library has there are not the model's. Null takes all rows."""
    pattern: str | None = None
    """Split pattern, for the tiktoken backend."""
    normalizer: Literal["NFC"] | None = None
    """Unicode form to which the model's own tokenizer brings a text before it splits it (Qwen: NFC). Prompts are
    normalized; answers are not, since they are decoded from ids."""
    max_run: int | None = Field(None, ge=1)
    """Longest run of white space or of other characters before the model's own tokenizer cuts it (Kimi: 25,000)."""
    max_chars: int | None = Field(None, ge=1)
    """Longest text that the model's own tokenizer encodes in one piece (Kimi: 400,000)."""


class Roles(Section):
    """Special tokens by their role in an answer: the token's text, or null if the format has none."""

    end: str
    """Ends the turn."""
    think_open: str | None = None
    """Opens the reasoning."""
    think_close: str | None = None
    """Closes the reasoning."""
    tools_open: str | None = None
    """Opens the section that holds all tool calls."""
    tools_close: str | None = None
    """Closes that section."""
    call_open: str | None = None
    """Opens one tool call."""
    call_args: str | None = None
    """Separates a call's id or name from its arguments."""
    call_close: str | None = None
    """Closes one tool call."""


class TargetSpec(Section):
    """The target's section in the configuration; its keys are promised to users."""

    name: str
    """The file's name under conf/target/."""
    model: str
    """Hub id or local path of the weights; for a stand-in that the build trains itself, its name."""
    revision: str | None = None
    """Pinned revision of a hub model."""
    trust_remote_code: bool = False
    """True lets code that comes with the model run; only the user may set it."""
    tokenizer: TokenizerSpec
    vocab_size: int = Field(gt=0)
    """Rows of the model's embedding; every id is below it."""
    chat: ChatFormat
    """The chat format that renders prompts and assembles answers."""
    special_tokens: dict[str, int]
    """Every special token that may be placed by id: text to id."""
    roles: Roles
    tool_id_format: str | None = None
    """The model's pattern for the id of a call, with {name} and {index}; null if the format has no ids."""


class TargetRecord(TargetSpec):
    """A target whose tokenizer and special-token map were checked against each other.

    Later stages read nothing else of it.
    """

    version: Literal[1] = 1
    tokenizer_sha256: str
    """Digest of every id's bytes, the special tokens and the split pattern, as loaded when the record was made."""

    def role_id(self, role: str) -> int | None:
        """Return the id of the special token of ``role``, or None if the format has none."""
        text: str | None = getattr(self.roles, role)
        return None if text is None else self.special_tokens[text]
