"""The scripts of a text's letters, by ranges of code points."""

import numpy as np

NAMES = ("other", "Latin", "Greek", "Cyrillic", "Hebrew", "Arabic", "Devanagari", "Thai", "Hangul", "Kana", "Han")

_RANGES = (
    ("Latin", ((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x24F), (0x1E00, 0x1EFF))),
    ("Greek", ((0x370, 0x3FF), (0x1F00, 0x1FFF))),
    ("Cyrillic", ((0x400, 0x52F),)),
    ("Hebrew", ((0x590, 0x5FF),)),
    ("Arabic", ((0x600, 0x6FF), (0x750, 0x77F))),
    ("Devanagari", ((0x900, 0x97F),)),
    ("Thai", ((0xE00, 0xE7F),)),
    ("Hangul", ((0x1100, 0x11FF), (0xAC00, 0xD7AF))),
    ("Kana", ((0x3040, 0x30FF),)),
    ("Han", ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0x20000, 0x2FFFF))),
)


def _table() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    table = np.zeros(0x30000, dtype=np.uint8)
    for name, spans in _RANGES:
        for first, last in spans:
            table[first : last + 1] = NAMES.index(name)
    return table


_SCRIPT = _table()


def script_shares(text: str) -> tuple[dict[str, float], int]:
    """Return the share of each script among the letters of a text, and the number of letters.

    Kana and Han count as two scripts. A long ASCII text counts every character as a letter, which is quicker.
    """
    if text.isascii():
        letters = sum(map(str.isalpha, text)) if len(text) < 256 else len(text)
        return ({"Latin": 1.0}, letters) if letters else ({}, 0)
    points = np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32)
    counts = np.bincount(_SCRIPT[points[points < len(_SCRIPT)]], minlength=len(NAMES))
    letters = int(counts[1:].sum())
    return {NAMES[i]: int(counts[i]) / letters for i in np.flatnonzero(counts[1:]) + 1}, letters
