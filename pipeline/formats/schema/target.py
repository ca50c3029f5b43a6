"""What a target model is: `build/target/fingerprint.json`, and the part of `conf/target/` that it repeats."""

from typing import Literal

from pydantic import Field

from pipeline.core.sections import Section


class TokenizerSpec(Section):
    """Which tokenizer, and its habits."""

    backend: Literal["splintr", "transformers", "tiktoken"]
    """`splintr`: a vocabulary bundled with splintr-rs; `transformers`: a local folder or hub id; `tiktoken`: a local rank file."""
    name: str
    """The vocabulary's name, the folder or hub id, or the path of the rank file."""
    sha256: str | None = None
    """Digest of every id's bytes, of the special tokens and of how text is cut; checked when given."""
    size: int | None = Field(None, ge=1)
    """Ids that the model's own tokenizer has; rows of the model from here on are padding, and special tokens that a library
    names there are its own invention. Null takes all rows."""
    pattern: str | None = None
    """Split pattern, for the tiktoken backend."""
    max_run: int | None = Field(None, ge=1)
    """Longest run of white space or of other characters before the model's own tokenizer cuts it (Kimi: 25,000)."""
    max_chars: int | None = Field(None, ge=1)
    """Longest text that the model's own tokenizer encodes in one piece (Kimi: 400,000)."""


class Roles(Section):
    """Which special token does what in an answer; the text of the token, or null where the format has none."""

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
    """Stands between a call's id or name and its arguments."""
    call_close: str | None = None
    """Closes one tool call."""


class TargetSpec(Section):
    """What configuration says of the target; keys are promised to users."""

    name: str
    """The file's name under conf/target/."""
    model: str
    """Hub id or local path of the weights; for a stand-in that the build trains itself, its name."""
    revision: str | None = None
    """Pinned revision of a hub model."""
    trust_remote_code: bool = False
    """Whether code that comes with the model may run. Off unless the user says so here."""
    tokenizer: TokenizerSpec
    vocab_size: int = Field(gt=0)
    """Rows of the model's embedding; every id is below it."""
    chat: Literal["kimi_k25", "kimi_k2", "qwen3", "deepseek_v3"]
    """Which chat format renders prompts and assembles answers."""
    special_tokens: dict[str, int]
    """Every special token that may be placed by id: text to id."""
    roles: Roles
    tool_id_format: str | None = None
    """How the model names a call, with {name} and {index}; null when the format writes no id."""


class TargetRecord(TargetSpec):
    """A target whose tokenizer and special-token map were checked against each other; all that later stages know of it."""

    version: Literal[1] = 1
    tokenizer_sha256: str
    """Digest of every id's bytes, of the special tokens and of how text is cut, as loaded when the record was made."""

    def role_id(self, role: str) -> int | None:
        """Id of the special token that plays ``role``, or None where the format has none."""
        text: str | None = getattr(self.roles, role)
        return None if text is None else self.special_tokens[text]
