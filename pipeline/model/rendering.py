"""Rendering of conversations to prompt ids in every chat format, offline, with the library `renderers`."""

import re
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from unicodedata import normalize

from pipeline.core.errors import InputError
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.conversation_checks import check_messages, check_tools
from pipeline.model.format_rules import RULES, arrange, check_format
from pipeline.model.reasoning_names import with_reasoning
from pipeline.model.tokenizer.tokenizer import Tokenizer


class _PromptTokenizer:
    """The tokenizer that `renderers` sees. It parses markers, as a serving engine does in a rendered prompt."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer) -> None:
        self.name_or_path = record.model
        self.unk_token_id = None
        self.eos_token_id = record.role_id("end")
        self._tokenizer = tokenizer
        self._normalizer = tokenizer.spec.normalizer
        self._special = tokenizer.special_ids
        self._marker = re.compile("(" + "|".join(sorted(map(re.escape, self._special), key=len, reverse=True)) + ")")

    def encode(self, text: str, *_args: Any, **_kwargs: Any) -> list[int]:
        ids: list[int] = []
        for piece in self._marker.split(text):
            if piece in self._special:
                ids.append(self._special[piece])
            elif piece:
                ids += self._tokenizer.encode(self._normalized(piece))
        return ids

    def _normalized(self, text: str) -> str:
        """Return a text as the model's own tokenizer normalizes it; it does so between markers, not across them."""
        return text if self._normalizer is None else normalize(self._normalizer, text)

    def decode(self, token_ids: Any, *_args: Any, **_kwargs: Any) -> str:
        return "".join(map(self._tokenizer.show, token_ids))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        return self._special.get(tokens) if isinstance(tokens, str) else [self._special.get(token) for token in tokens]


def _renderers() -> dict[str, Any]:
    """Return the renderer class of each chat format.

    Importing the package `renderers` also imports its vLLM client, and with it openai and aiohttp: 1.5 s of CPU. So the
    modules are imported through a bare package of that name. It is removed afterwards, so a later import of `renderers`
    gets the whole package.
    """
    package = None if "renderers" in sys.modules else find_spec("renderers")
    if package is not None and package.submodule_search_locations:
        bare = sys.modules["renderers"] = ModuleType("renderers")
        bare.__path__ = list(package.submodule_search_locations)
    try:
        from renderers.deepseek_v3 import DeepSeekV3Renderer
        from renderers.kimi_k2 import KimiK2Renderer
        from renderers.kimi_k25 import KimiK25Renderer
        from renderers.qwen3 import Qwen3Renderer
    finally:
        if package is not None:
            sys.modules.pop("renderers", None)
    return {
        "kimi_k25": KimiK25Renderer,
        "kimi_k2": KimiK2Renderer,
        "qwen3": Qwen3Renderer,
        "deepseek_v3": DeepSeekV3Renderer,
    }


def _with_thinking(renderer: Any, chat: str, tokenizer: _PromptTokenizer, thinking: bool) -> Any:
    """Return a renderer with the reasoning on or off; a format without reasoning has one mode only."""
    option = RULES[chat].thinking
    if option is None:
        return renderer
    return type(renderer)(tokenizer, renderer.config.model_copy(update={option: thinking}))


class PromptRenderer:
    """Renders messages and tools to the ids that the model reads, generation prompt included."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer) -> None:
        self._chat = record.chat
        prompt_tokenizer = _PromptTokenizer(record, tokenizer)
        self._renderer = _renderers()[record.chat](prompt_tokenizer)
        self._modes: dict[bool | None, Any] = {
            None: self._renderer,
            **{mode: _with_thinking(self._renderer, record.chat, prompt_tokenizer, mode) for mode in (True, False)},
        }

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        thinking: bool | None = None,
    ) -> list[int]:
        """Return the ids of a conversation up to the point where the model starts to write.

        ``thinking`` switches the reasoning on or off as the format's template does (Kimi-K2.5: `<think>` or
        `<think></think>`); None takes the format's default, and a format without reasoning has one mode only.

        Raises:
            InputError: the messages or tools cannot be rendered in this chat format, or its template would drop a part.

        """
        check_messages(messages)
        check_tools(tools)
        check_format(self._chat, messages, tools)
        try:
            return list(
                self._modes[thinking].render_ids(
                    arrange(self._chat, [*map(with_reasoning, messages)]),
                    tools=tools or None,
                    add_generation_prompt=True,
                )
            )
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, AssertionError, RuntimeError) as error:
            raise InputError(f"the prompt cannot be rendered: {type(error).__name__}: {error}") from error
