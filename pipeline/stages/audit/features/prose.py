"""The prose of a text, without code, formulas, addresses and names."""

import re

_FENCE = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_INLINE = re.compile(r"`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$|\\\[.*?\\\]|\\\(.*?\\\)|</?[A-Za-z][^<>\n]*>", re.DOTALL)
_ADDRESS = re.compile(r"(?:https?://|www\.)\S+|\S+@\S+\.\w+")
_CODE_LINE = re.compile(
    r"^\s*(?:def |class |import |from \w[\w.]* import |return\b|for \(|if \(|while \(|#include|public |private |const "
    r"|let |var |function |SELECT |INSERT |UPDATE |CREATE |elif |else:|try:|except |with .*:$|//|/\*)"
    r"|[{};]\s*$|\w\([^()\n]*\)|[\w\])]\s*(?:==|!=|<=|>=|:=|\+=|-=|=>|->|=)\s*[\w\"'(\[{]",
)
_NAME = re.compile(r"\b[A-Z][\w'\u2019-]*|\b\w*[\d_]\w*\b")
_FOREIGN_RUN = re.compile(r"[^\x00-\x7f]{2,}")


def prose_of(text: str) -> str:
    """Return a text without blocks and lines of code, inline code, formulas, markup and addresses."""
    for pattern in (_FENCE, _INLINE, _ADDRESS):
        text = pattern.sub(" ", text)
    return "\n".join(line for line in text.split("\n") if not (line.isascii() and _CODE_LINE.search(line)))


def without_names(text: str) -> str:
    """Return a text without words in Latin script that begin with a capital or hold a digit or an underscore."""
    return _NAME.sub(" ", text)


def without_quotes(text: str, quoted: str) -> str:
    """Return a text without the stretches of characters beyond ASCII that ``quoted`` has too."""
    return _FOREIGN_RUN.sub(lambda found: " " if found.group() in quoted else found.group(), text)
