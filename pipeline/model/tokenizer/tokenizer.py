"""A target's tokenizer: ordinary text to ids, and ids back to bytes.

Text is always encoded with special tokens off: a text that mentions ``<|im_end|>`` stays text. Special tokens are
placed by id, from the target's map, which `pipeline/model/special_tokens.py` checks.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import filterfalse

from pipeline.core.errors import InputError
from pipeline.formats.schema.target import TokenizerSpec
from pipeline.model.tokenizer.backend import TokenizerBackend

_SPLIT_PROBE = (
    "I don't DON'T they'll x's 1 12 123 1234 12345678 a1b2 "
    "中文English混合 我在2024年用Python写了3个脚本，效果不错！Ⅷ ² ½ "
    "  two   three\t\ttabs \n\n \r\n\r\n\u00a0nbsp\u3000wide CamelCase HTTPServer snake_case "
    "naïve e\u0301 Ǆ ʰ ひらがな カタカナ 한국어 हिन्दी "
    "… — «x» $1.50 a+b==c; // x\n\tif (y) {\n  z[0] = '\"';\n}\n\n\n🙂👍🏽👨\u200d👩 \u200b<|im_end|> <｜x｜> "
)
"""A text on which the split patterns in use differ: contractions, digit groups, Han beside Latin, marks, white space,
line ends."""


class _TokenBytes(dict[int, bytes]):
    """Bytes of each token; the first look-up of a token asks for them, later ones do not."""

    def __init__(self, ask: Callable[[int], bytes]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, token: int) -> bytes:
        token_bytes = self[token] = self._ask(token)
        return token_bytes


class Tokenizer:
    """A target's tokenizer, with the limits that the model's own tokenizer puts on long texts."""

    def __init__(self, spec: TokenizerSpec, backend: TokenizerBackend, vocab_size: int) -> None:
        self.spec = spec
        self.vocab_size = vocab_size
        self._size = min(spec.size or vocab_size, vocab_size)
        self.special_ids = {text: token for text, token in backend.special_ids.items() if token < self._size}
        """Special tokens that both the tokenizer and the model have; a library invents names for ids beyond them."""
        self.special_texts = {token: text for text, token in self.special_ids.items()}
        self._backend = backend
        self._uncut_length = min(limit for limit in (spec.max_run, spec.max_chars, sys.maxsize) if limit is not None)
        """A text of at most this many characters is never cut."""
        self._bytes_of = _TokenBytes(self._ask_bytes)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` as ordinary text; markers in it stay text.

        Raises:
            InputError: the text holds a lone surrogate, so it has no UTF-8 form.

        """
        try:
            if len(text) <= self._uncut_length:
                return list(self._backend.encode(text))
            return [token for part in _cut(text, self.spec) for token in self._backend.encode(part)]
        except UnicodeEncodeError as error:
            raise _surrogate_error(text, error) from error

    def encode_flat(self, text: str) -> bytes:
        """Return the ids that `encode` gives as little-endian uint32 bytes, without a Python object for each token.

        Raises:
            InputError: the text holds a lone surrogate, so it has no UTF-8 form.

        """
        try:
            if len(text) <= self._uncut_length:
                return self._backend.encode_flat(text)
            return b"".join(map(self._backend.encode_flat, _cut(text, self.spec)))
        except UnicodeEncodeError as error:
            raise _surrogate_error(text, error) from error

    def encode_flat_batch(self, texts: Sequence[str]) -> list[bytes]:
        """Return `encode_flat` of each text, faster than one call for each.

        Raises:
            InputError: as `encode_flat`.

        """
        try:
            if all(len(text) <= self._uncut_length for text in texts):
                return self._backend.encode_flat_batch(texts)
        except UnicodeEncodeError:
            pass  # encoding one text after the other names the one at fault
        return list(map(self.encode_flat, texts))

    def encodes_to(self, text: str, flat: bytes) -> bool:
        """Return whether `encode_flat` of a text is ``flat``, the ids of ordinary tokens; cheaper than encoding it.

        ``flat`` holds no special token, so an unchecked encoding that equals it holds none either and is right.
        """
        if len(text) <= self._uncut_length and self._backend.encode_flat_unchecked(text) == flat:
            return True
        return self.encode_flat(text) == flat

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of an ordinary token; empty for a special or unused id, or one outside the vocabulary."""
        return self._bytes_of[token]

    def _ask_bytes(self, token: int) -> bytes:
        ordinary = 0 <= token < self._size and token not in self.special_texts
        return self._backend.token_bytes(token) if ordinary else b""

    def without_bytes(self, tokens: Iterable[int]) -> set[int]:
        """Return those of the tokens for which `token_bytes` is empty."""
        return set(filterfalse(self._bytes_of.__getitem__, tokens))

    @cached_property
    def _backend_bytes(self) -> list[bytes]:
        """The library's bytes of each id; kept, since collecting them takes a quarter of a second."""
        return list(map(self._backend.token_bytes, range(self._size)))

    def all_token_bytes(self) -> list[bytes]:
        """Return `token_bytes` of each id of the vocabulary; [vocab_size]."""
        listed = [*self._backend_bytes, *[b""] * (self.vocab_size - self._size)]
        for token in self.special_texts:
            listed[token] = b""
        return listed

    def spelled(self, token: int) -> bytes:
        """Return the bytes of a token; for a special token, its name in UTF-8."""
        name = self.special_texts.get(token)
        return self.token_bytes(token) if name is None else name.encode()

    def special_tokens_and_bytes(self, ids: Sequence[int]) -> list[int | bytes]:
        """Return the special tokens of ``ids`` and the bytes between them: equal for two segmentations of one text."""
        parts: list[int | bytes] = []
        for token in ids:
            if token in self.special_texts:
                parts.append(token)
            elif parts and isinstance(parts[-1], bytes):
                parts[-1] += self.token_bytes(token)
            else:
                parts.append(self.token_bytes(token))
        return parts

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Return the joined bytes of the ordinary tokens; special ones contribute nothing."""
        return b"".join(map(self._bytes_of.__getitem__, ids))

    def show(self, token: int) -> str:
        """Return a token's text or special name for messages, or the fact that it is outside the vocabulary."""
        if token in self.special_texts:
            return self.special_texts[token]
        if not 0 <= token < self.vocab_size:
            return f"an id outside the vocabulary of {self.vocab_size}"
        return self.token_bytes(token).decode("utf-8", "backslashreplace")

    def sha256(self) -> str:
        """Return the digest of all that decides an encoding.

        It covers every id's bytes, the special tokens, the limits at which text is cut, and the ids of a text on which
        split patterns differ.
        """
        sizes = [size.to_bytes(4, "little") for size in range(max(map(len, self._backend_bytes), default=0) + 1)]
        sized = [part for token_bytes in self._backend_bytes for part in (sizes[len(token_bytes)], token_bytes)]
        digest = hashlib.sha256(b"".join(sized))
        digest.update(repr(sorted(self.special_ids.items())).encode())
        digest.update(repr((self.spec.max_run, self.spec.max_chars, self.encode(_SPLIT_PROBE))).encode())
        return digest.hexdigest()


def _surrogate_error(text: str, error: UnicodeEncodeError) -> InputError:
    return InputError(
        f"character {error.start} is {text[error.start]!r}, a lone surrogate: the text is not valid Unicode"
    )


def _cut(text: str, spec: TokenizerSpec) -> Iterator[str]:
    """Cut a long text as Moonshot's tokenizer does before BPE: every ``max_chars``, and inside runs over ``max_run``.

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
