"""How a prompt begins in each chat format."""

from typing import NamedTuple


class PromptStart(NamedTuple):
    """The token that begins a text, and how often it begins a prompt."""

    token: str
    times: int


PROMPT_STARTS = {
    "kimi_k25": PromptStart("[BOS]", 0),
    "kimi_k2": PromptStart("[BOS]", 0),
    "qwen3": PromptStart("<|endoftext|>", 0),
    "deepseek_v3": PromptStart("<\uff5cbegin\u2581of\u2581sentence\uff5c>", 1),
}
"""By chat format, as the models' own templates render prompts. Kimi's and Qwen's tokenizers have such a token, and
servers that encode a rendered prompt with special tokens added write it once too often."""
