"""A tokenizer that transformers loads from a local folder or the hub; byte-level BPE only."""

import json
from pathlib import Path
from typing import Any

from pipeline.core.errors import TokenizerError
from pipeline.formats.schema.target import TokenizerSpec
from pipeline.model.tokenizer.backend import ListBackend


class TransformersBackend(ListBackend):
    """A fast tokenizer of transformers without its added tokens, so that no marker in a text becomes special."""

    def __init__(self, spec: TokenizerSpec, revision: str | None, *, trust_remote_code: bool) -> None:
        if revision is None and not Path(spec.name).is_dir():
            raise TokenizerError(
                f"target.tokenizer.name is {spec.name!r}, which is not a local folder and so names a hub model, and "
                "target.revision is null: the hub's files may change; set target.revision to a commit, or name a folder"
            )
        from transformers import AutoTokenizer  # takes seconds to import

        try:
            loaded = AutoTokenizer.from_pretrained(spec.name, revision=revision, trust_remote_code=trust_remote_code)
        except Exception as error:
            raise TokenizerError(
                f"target.tokenizer.name {spec.name!r}: transformers cannot load it: {type(error).__name__}: {error}"
            ) from error
        fast = getattr(loaded, "backend_tokenizer", None)
        if fast is None:
            raise TokenizerError(
                f"target.tokenizer.name {spec.name!r}: it has only a slow tokenizer, in which special tokens cannot be "
                "switched off; use the tiktoken backend"
            )
        _check_normalizer(fast, spec)
        added = fast.get_added_tokens_decoder()
        self._fast = _without_added_tokens(fast)
        self.special_ids = {token.content: index for index, token in added.items()}
        self._special = set(added)
        self._byte_of_character = {character: byte for byte, character in _byte_level_alphabet().items()}

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` with special tokens off."""
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of an ordinary token; empty for a special or unknown one.

        Raises:
            TokenizerError: the vocabulary is not byte-level BPE.

        """
        spelling = None if token in self._special else self._fast.id_to_token(token)
        if spelling is None:
            return b""
        try:
            return bytes(self._byte_of_character[character] for character in spelling)
        except KeyError as error:
            raise TokenizerError(
                f"id {token} is {spelling!r}, which is not a byte-level token; only byte-level BPE is supported"
            ) from error


def _check_normalizer(fast: Any, spec: TokenizerSpec) -> None:
    """Compare the declared normalizer with the one in tokenizer.json.

    Raises:
        TokenizerError: they differ.

    """
    settings = json.loads(fast.to_str())["normalizer"]
    steps = settings["normalizers"] if settings and settings["type"] == "Sequence" else [settings] if settings else []
    kinds = [step["type"] for step in steps]
    declared = [] if spec.normalizer is None else [spec.normalizer]
    if kinds != declared:
        raise TokenizerError(
            f"target.tokenizer.name {spec.name!r}: its tokenizer.json normalizes with {kinds}, but "
            f"target.tokenizer.normalizer declares {declared}; only NFC alone and no normalizer are supported"
        )


def _without_added_tokens(fast: Any) -> Any:
    """Return a copy without added tokens and without the normalizer.

    The library can switch off only those added tokens that are marked special, and Qwen's ``<think>`` is not. The
    normalizer is for prompts, and `PromptRenderer` applies it: an answer is decoded from ids and was never normalized.
    """
    settings = json.loads(fast.to_str())
    off: dict[str, Any] = {
        "added_tokens": [],
        "normalizer": None,
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    return type(fast).from_str(json.dumps({**settings, **off}))


def _byte_level_alphabet() -> dict[int, str]:
    """Return the printable character of each byte, as byte-level BPE writes its vocabulary (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + number) for number, byte in enumerate(rest)}}
