"""The frame of every report: one file that loads nothing and runs no script but its own."""

from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from pipeline.core.files.contents import read_bytes
from pipeline.core.html.markup import Html, join, tag


def _page_asset(name: str) -> str:
    """Text of a file beside this module, on lines of its own."""
    return f"\n{read_bytes(Path(__file__).with_name(name)).decode()}"


STYLE = _page_asset("report.css")
"""Style sheet of all reports. Text has a contrast of at least 4.5 with its background, in light and in dark."""

SCRIPT = _page_asset("report.js")
"""Sorts tables by a column and filters rows by words and by kind. A page shows all its content without it."""


def _hash_source(text: str) -> str:
    """Source expression that admits exactly this text (Content Security Policy Level 3, section 2.3.1)."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; style-src {_hash_source(STYLE)}; script-src {_hash_source(SCRIPT)}; "
    "base-uri 'none'; form-action 'none'"
)
"""Content security policy: the browser loads nothing, and applies only this style sheet and this script."""


def page(title: str, sections: list[tuple[str, str, Html]]) -> str:
    """Return a whole HTML document.

    ``sections`` are triples of id, heading and body. A section with an empty heading gets neither a heading nor a
    link in the navigation.
    """
    links = [tag("li", tag("a", heading, href=f"#{key}")) for key, heading, _body in sections if heading]
    parts = [
        tag(
            "section",
            tag("h2", heading, id=f"{key}-h") if heading else None,
            body,
            id=key,
            aria_labelledby=f"{key}-h" if heading else None,
        )
        for key, heading, body in sections
    ]
    head = join(
        tag("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        Html(f"<style>{STYLE}</style>"),
    )
    body = join(
        tag("a", "Skip to the verdict", href="#verdict", class_="skip"),
        tag("nav", tag("ul", *links), aria_label="Sections"),
        tag("main", *parts),
        Html(f"<script>{SCRIPT}</script>"),
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'
