"""HTML from values; all but `Html` is escaped, so that model output never becomes markup."""

import re
from html import escape

Attribute = str | int | float | bool | None

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Characters that are invisible, or change how their neighbours are shown; tab and line feed are allowed."""

VOID = {"meta", "input"}
"""Elements without content and without an end tag, among those that pages use."""


class Html(str):
    """Text that is markup. Only the modules of this package make it, never code that reads data."""

    __slots__ = ()


def visible(text: str) -> str:
    """Return text with every hidden character written out as its code point."""
    return _HIDDEN.sub(lambda found: f"\u27e8U+{ord(found.group()):04X}\u27e9", text)


def safe(value: object) -> Html:
    """Return a value as text of a page, escaped unless it is markup."""
    return value if isinstance(value, Html) else Html(escape(visible(str(value)), quote=True))


def join(*parts: object) -> Html:
    """Join parts into markup; None adds nothing."""
    return Html("".join(safe(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: Attribute) -> Html:
    """Return one element.

    In attribute names a final `_` is dropped, and other `_` become `-`. None and False leave an attribute out; True
    writes it without a value.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{safe(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        assert not children
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")
