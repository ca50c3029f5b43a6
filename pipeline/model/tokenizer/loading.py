"""The only loader of tokenizers.

Text is always encoded with special tokens off: a text that merely mentions ``<|im_end|>`` stays text. Special tokens
are placed by id, from the target's map, which `pipeline/model/special_tokens.py` checks.
"""

import hashlib
import json
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import filterfalse
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline.core.errors import InputError, TokenizerError
from pipeline.formats.schema.target import TargetSpec, TokenizerSpec

_SPLIT_PROBE = (
    "I don't DON'T they'll x's 1 12 123 1234 12345678 a1b2 中文English混合 我在2024年用Python写了3个脚本，效果不错！Ⅷ ² ½ "
    "  two   three\t\ttabs \n\n \r\n\r\n\u00a0nbsp\u3000wide CamelCase HTTPServer snake_case naïve e\u0301 Ǆ ʰ ひらがな カタカナ 한국어 हिन्दी "
    "… — «x» $1.50 a+b==c; // x\n\tif (y) {\n  z[0] = '\"';\n}\n\n\n🙂👍🏽👨\u200d👩 \u200b<|im_end|> <｜x｜> "
)
"""Text on which the split patterns in use differ: contractions, digit groups, Han beside Latin, marks, white space, line ends."""


class Backend(Protocol):
    """What a tokenizer library must give: ordinary encoding, bytes, and the named special tokens."""

    special_ids: dict[str, int]
    """Text of each special token that the tokenizer knows, to its id."""

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, special tokens off."""

    def encode_flat(self, text: str) -> bytes:
        """The same ids as little-endian uint32 bytes."""

    def flats(self, texts: Sequence[str]) -> list[bytes]:
        """`encode_flat` of each text."""

    def quick_flat(self, text: str) -> bytes:
        """The same again, unless special tokens are among the ids given."""

    def token_bytes(self, token: int) -> bytes:
        """Bytes of an ordinary token; empty for a special or unknown one."""


def _pack(ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


_UINT32 = np.dtype("<u4")


def _largest(flat: bytes) -> int:
    return int(np.maximum.reduce(np.frombuffer(flat, _UINT32))) if flat else -1  # half the time of max()


class _Splintr:
    """Vocabularies that splintr-rs bundles. Only `encode_ordinary` is safe: its other calls parse special tokens."""

    def __init__(self, spec: TokenizerSpec) -> None:
        import splintr

        try:
            loaded = splintr.Tokenizer.from_pretrained(spec.name)
        except ValueError as error:
            raise TokenizerError(f"target.tokenizer.name {spec.name!r}: {error}") from error
        self.special_ids = dict(loaded.special_tokens())
        self.encode = loaded.encode_ordinary
        self._bytes_of = loaded.decode_token_bytes
        self.quick_flat = loaded.encode_flat
        self._first_special = self._all_above()

    def _all_above(self) -> int:
        """Id from which on there are only special tokens; 0 when ordinary ones lie among them."""
        ids = set(self.special_ids.values())
        first = min(ids, default=0)
        return (
            first if all(token in ids or not self._known(token) for token in range(first, max(ids, default=0))) else 0
        )

    def _known(self, token: int) -> bool:
        try:
            return bool(self._bytes_of(token))
        except ValueError:  # a hole in the vocabulary
            return False

    def encode_flat(self, text: str) -> bytes:
        """Ids without a Python object for each.

        splintr's flat call parses special tokens; they lie above all others here, so the largest id tells whether it met one.
        """
        if not self._first_special:
            return _pack(self.encode(text))
        flat: bytes = self.quick_flat(text)
        return flat if _largest(flat) < self._first_special else _pack(self.encode(text))

    def flats(self, texts: Sequence[str]) -> list[bytes]:
        found = list(map(self.quick_flat, texts))
        return found if _largest(b"".join(found)) < self._first_special else list(map(self.encode_flat, texts))

    def token_bytes(self, token: int) -> bytes:
        try:
            return bytes(self._bytes_of(token))
        except ValueError:  # a hole in the vocabulary
            return b""


class _Tiktoken:
    """A local rank file in tiktoken's format; the special tokens are those of the target's map."""

    def __init__(self, spec: TokenizerSpec, special_tokens: dict[str, int]) -> None:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        if not spec.pattern:
            raise TokenizerError("target.tokenizer.pattern: the tiktoken backend needs the split pattern; found none")
        if not Path(spec.name).is_file():
            raise TokenizerError(f"target.tokenizer.name {spec.name}: no such rank file")
        try:
            ranks = load_tiktoken_bpe(spec.name)
            loaded = tiktoken.Encoding(spec.name, pat_str=spec.pattern, mergeable_ranks=ranks, special_tokens={})
        except (OSError, ValueError) as error:
            raise TokenizerError(
                f"target.tokenizer.name {spec.name}: no rank file of tiktoken (a base64 token and its rank a line), or target.tokenizer.pattern is no pattern: {error}"
            ) from error
        self.encode = loaded.encode_ordinary
        self._bytes = {token: piece for piece, token in ranks.items()}
        self.special_ids = {
            text: token for text, token in special_tokens.items() if token not in self._bytes
        }  # a ranked id is ordinary text

    def encode_flat(self, text: str) -> bytes:
        return _pack(self.encode(text))

    def flats(self, texts: Sequence[str]) -> list[bytes]:
        return list(map(self.encode_flat, texts))

    quick_flat = encode_flat

    def token_bytes(self, token: int) -> bytes:
        return bytes(self._bytes.get(token, b""))


class _Transformers:
    """A tokenizer that transformers loads, from a local folder or the hub; byte-level BPE only."""

    def __init__(self, spec: TokenizerSpec, revision: str | None, *, trust_remote_code: bool) -> None:
        if revision is None and not Path(spec.name).is_dir():
            raise TokenizerError(
                f"target.tokenizer.name is {spec.name!r}, no local folder, so a hub id, and target.revision is null: what the hub gives would change; "
                "set target.revision to the commit that is meant, or name a folder"
            )
        from transformers import AutoTokenizer  # takes seconds

        try:
            loaded = AutoTokenizer.from_pretrained(spec.name, revision=revision, trust_remote_code=trust_remote_code)
        except Exception as error:
            raise TokenizerError(
                f"target.tokenizer.name {spec.name!r}: transformers cannot load it: {type(error).__name__}: {error}"
            ) from error
        fast = getattr(loaded, "backend_tokenizer", None)
        if fast is None:
            raise TokenizerError(
                f"target.tokenizer.name {spec.name!r}: no fast tokenizer there, so special tokens cannot be switched off; use the tiktoken backend"
            )
        added = fast.get_added_tokens_decoder()
        self._fast = _without_added_tokens(fast)
        self.special_ids = {token.content: index for index, token in added.items()}
        self._special = set(added)
        self._unicode_to_byte = {char: byte for byte, char in _byte_level_alphabet().items()}

    def encode(self, text: str) -> list[int]:
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def encode_flat(self, text: str) -> bytes:
        return _pack(self.encode(text))

    def flats(self, texts: Sequence[str]) -> list[bytes]:
        return list(map(self.encode_flat, texts))

    quick_flat = encode_flat

    def token_bytes(self, token: int) -> bytes:
        piece = None if token in self._special else self._fast.id_to_token(token)
        if piece is None:
            return b""
        try:
            return bytes(self._unicode_to_byte[char] for char in piece)
        except KeyError as error:
            raise TokenizerError(
                f"id {token} is {piece!r}: not a byte-level token; only byte-level BPE is supported"
            ) from error


def _without_added_tokens(fast: Any) -> Any:
    """Give a copy that knows no added token: the library can switch off the special ones only, and Qwen's ``<think>`` is not among them."""
    tree = json.loads(fast.to_str())
    return type(fast).from_str(
        json.dumps({**tree, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None})
    )


def _byte_level_alphabet() -> dict[int, str]:
    """Byte to printable character, as byte-level BPE writes its vocabulary (GPT-2)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + n) for n, byte in enumerate(rest)}}


class _Pieces(dict[int, bytes]):
    """Bytes of tokens, each asked for once."""

    def __init__(self, find: Callable[[int], bytes]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, token: int) -> bytes:
        piece = self[token] = self._find(token)
        return piece


class Tokenizer:
    """A target's tokenizer: ordinary text to ids and back to bytes, with the model tokenizer's own habits."""

    def __init__(self, spec: TokenizerSpec, backend: Backend, vocab_size: int) -> None:
        self.spec = spec
        self.vocab_size = vocab_size
        self._size = min(spec.size or vocab_size, vocab_size)
        self.special_ids = {text: token for text, token in backend.special_ids.items() if token < self._size}
        """Special tokens that the tokenizer knows and the model has: what a library names beyond them is its own invention."""
        self.special_texts = {token: text for text, token in self.special_ids.items()}
        self._backend = backend
        self._uncut = min(limit for limit in (spec.max_run, spec.max_chars, sys.maxsize) if limit is not None)
        """Characters of a text up to which nothing can have to be cut."""
        self._pieces = _Pieces(self._piece)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` as ordinary text; markers in it stay text.

        Raises:
            InputError: the text holds a lone surrogate, so it has no UTF-8 form.

        """
        try:
            if len(text) <= self._uncut:
                return list(self._backend.encode(text))
            return [token for piece in _cut(text, self.spec) for token in self._backend.encode(piece)]
        except UnicodeEncodeError as error:
            raise _not_unicode(text, error) from error

    def encode_flat(self, text: str) -> bytes:
        """Ids of ``text`` as `encode` gives them, as little-endian uint32 bytes: no Python object for each token.

        Raises:
            InputError: the text holds a lone surrogate, so it has no UTF-8 form.

        """
        try:
            if len(text) <= self._uncut:
                return self._backend.encode_flat(text)
            return b"".join(map(self._backend.encode_flat, _cut(text, self.spec)))
        except UnicodeEncodeError as error:
            raise _not_unicode(text, error) from error

    def flats(self, texts: Sequence[str]) -> list[bytes]:
        """`encode_flat` of each text, at less than the price of asking for each.

        Raises:
            InputError: as `encode_flat`.

        """
        try:
            if all(len(text) <= self._uncut for text in texts):
                return self._backend.flats(texts)
        except UnicodeEncodeError:
            pass  # the text at fault is named below
        return list(map(self.encode_flat, texts))

    def gives(self, text: str, flat: bytes) -> bool:
        """Whether `encode_flat` of a text is ``flat``, the ids of ordinary tokens; cheaper than asking for them."""
        if len(text) <= self._uncut and self._backend.quick_flat(text) == flat:
            return True
        return self.encode_flat(text) == flat

    def token_bytes(self, token: int) -> bytes:
        """Bytes of an ordinary token; empty for a special one, an unused id, or one outside the vocabulary."""
        return self._pieces[token]

    def _piece(self, token: int) -> bytes:
        inside = 0 <= token < self._size and token not in self.special_texts
        return self._backend.token_bytes(token) if inside else b""

    def without_text(self, tokens: Iterable[int]) -> set[int]:
        """Those of the tokens that `token_bytes` has nothing for."""
        return set(filterfalse(self._pieces.__getitem__, tokens))

    @cached_property
    def _whole(self) -> list[bytes]:
        """What the library gives for each id; asked once, since asking takes a quarter of a second."""
        return list(map(self._backend.token_bytes, range(self._size)))

    def pieces(self) -> list[bytes]:
        """`token_bytes` of each id of the vocabulary; [vocab_size]."""
        found = [*self._whole, *[b""] * (self.vocab_size - self._size)]
        for token in self.special_texts:
            found[token] = b""
        return found

    def spelled(self, token: int) -> bytes:
        """Bytes of a token with a special one spelled out by its name."""
        name = self.special_texts.get(token)
        return self.token_bytes(token) if name is None else name.encode()

    def spelling(self, ids: Sequence[int]) -> list[int | bytes]:
        """What ids say, however the text is cut: special tokens, and the bytes between them."""
        found: list[int | bytes] = []
        for token in ids:
            if token in self.special_texts:
                found.append(token)
            elif found and isinstance(found[-1], bytes):
                found[-1] += self.token_bytes(token)
            else:
                found.append(self.token_bytes(token))
        return found

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Bytes of ordinary tokens joined; special ones contribute nothing."""
        return b"".join(map(self._pieces.__getitem__, ids))

    def show(self, token: int) -> str:
        """One token for people: its text, its special name, or what it is instead."""
        if token in self.special_texts:
            return self.special_texts[token]
        if not 0 <= token < self.vocab_size:
            return f"an id outside the vocabulary of {self.vocab_size}"
        return self.token_bytes(token).decode("utf-8", "backslashreplace")

    def sha256(self) -> str:
        """Digest of every id's bytes, of the special tokens, and of how text is cut: limits, and the ids of a text that tells split patterns apart."""
        sizes = [size.to_bytes(4, "little") for size in range(max(map(len, self._whole), default=0) + 1)]
        digest = hashlib.sha256(b"".join([part for piece in self._whole for part in (sizes[len(piece)], piece)]))
        digest.update(repr(sorted(self.special_ids.items())).encode())
        digest.update(repr((self.spec.max_run, self.spec.max_chars, self.encode(_SPLIT_PROBE))).encode())
        return digest.hexdigest()


def _not_unicode(text: str, error: UnicodeEncodeError) -> InputError:
    return InputError(
        f"character {error.start} is {text[error.start]!r}, a lone surrogate: the text is not valid Unicode"
    )


def _cut(text: str, spec: TokenizerSpec) -> Iterator[str]:
    """Cut a long text as Moonshot's tokenizer does before BPE: every ``max_chars``, and inside runs longer than ``max_run``.

    A run is a stretch of only white space or only other characters.
    """
    width = spec.max_chars or len(text)
    longest = spec.max_run or width
    for start in range(0, len(text), width):
        block = text[start : start + width]
        begin = 0
        for run in re.finditer(r"\s+|\S+", block):
            for cut in range(run.start() + longest, run.end(), longest):
                yield block[begin:cut]
                begin = cut
        yield block[begin:]


def load_tokenizer(spec: TargetSpec) -> Tokenizer:
    """Load a target's tokenizer, unchecked.

    Raises:
        TokenizerError: it cannot be loaded.

    """
    backend: Backend
    if spec.tokenizer.backend == "splintr":
        backend = _Splintr(spec.tokenizer)
    elif spec.tokenizer.backend == "tiktoken":
        backend = _Tiktoken(spec.tokenizer, spec.special_tokens)
    else:
        backend = _Transformers(spec.tokenizer, spec.revision, trust_remote_code=spec.trust_remote_code)
    return Tokenizer(spec.tokenizer, backend, spec.vocab_size)
