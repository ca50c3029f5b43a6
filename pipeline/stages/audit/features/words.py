"""The words of a text, so that spelling, punctuation and layout do not hide that two texts are equal."""

import re
import unicodedata
import zlib

import numpy as np
from numpy.typing import NDArray

_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_QUOTE_MARK = re.compile(r"^\s*>+", re.MULTILINE)
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002ffff]"  # Kana and Han are written without spaces
    r"|\d+(?:\.\d+)*"
    r"|[^\W\d_]+"
    r"|[+=<>^\u00d7\u00f7\u2212]"
    r"|(?<=\d)\s*[-*/%]\s*(?=\d)"
)
_PREFIX = re.compile(
    r"^[\W_]*(?:(?:question|prompt|problem|query|task|exercise|user|human|instruction|input|q|frage|pregunta|pergunta"
    r"|domanda|\u0432\u043e\u043f\u0440\u043e\u0441|\u95ee\u9898|\u554f\u984c|\u95ee|\u8cea\u554f|\u984c\u76ee"
    r"|\u9898\u76ee|\uc9c8\ubb38)\s*[#\u2116]?\s*\d*[\W_]*?[:.)\uff1a\]][\W_]*)+"
)
_SUFFIX = re.compile(r"(?:\b(?:answer|response|solution|a|assistant|\u7b54\u6848|\u7b54)\s*[\W_]*?[:\uff1a][\W_]*)$")

_CONTRACTIONS = (
    ("n't", " not"),
    ("'s", " is"),
    ("'re", " are"),
    ("'m", " am"),
    ("'ll", " will"),
    ("'ve", " have"),
    ("'", ""),
)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case and Unicode's NFKC, without punctuation, and operators between numbers.

    A prefix such as "Question 3:" or "Prompt:" and a suffix such as "Answer:" are left out.
    """
    text = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'").replace("\u2212", "-")
    text = _SUFFIX.sub("", _PREFIX.sub("", _QUOTE_MARK.sub("", text)))
    for short, long in _CONTRACTIONS:
        text = text.replace(short, long)
    return [word.strip() for word in _WORD.findall(_GROUPED.sub("", text))]


def word_ids(words: list[str]) -> NDArray[np.int32]:
    """Return a number of each word, the same in every process; int32 [len(words)]."""
    return np.array([zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words], dtype=np.uint32).view(
        np.int32
    )
