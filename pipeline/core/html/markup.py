"""HTML from values: whatever is not `Html` already is escaped, so that model output can never become markup."""

import re
from html import escape

Attribute = str | int | float | bool | None

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Characters that cannot be seen, or that change how what stands around them is shown; tab and line feed may stay."""

VOID = {"meta", "input", "br"}


class Html(str):
    """Text that is markup: made by this module, never by a reader of data."""

    __slots__ = ()


def visible(text: str) -> str:
    """Text in which every hidden character is written out as its code point."""
    return _HIDDEN.sub(lambda found: f"\u27e8U+{ord(found.group()):04X}\u27e9", text)


def safe(value: object) -> Html:
    """Any value as text of a page."""
    return value if isinstance(value, Html) else Html(escape(visible(str(value)), quote=True))


def join(*parts: object) -> Html:
    """Parts after one another; None is nothing."""
    return Html("".join(safe(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: Attribute) -> Html:
    """One element. In attribute names `_` at the end is dropped and others become `-`; None and False leave an attribute out."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{safe(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return (
        Html(f"<{name}{written}>")
        if name in VOID and not children
        else Html(f"<{name}{written}>{join(*children)}</{name}>")
    )
