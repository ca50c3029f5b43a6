"""The frame of every report: one file that loads nothing, runs only its own script, and reads well on a phone, in the dark, by keyboard."""

from base64 import b64encode
from hashlib import sha256

from pipeline.core.html.markup import Html, join, tag
from pipeline.core.html.script import SCRIPT
from pipeline.core.html.style import STYLE


def _source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; style-src {_source(STYLE)}; script-src {_source(SCRIPT)}; base-uri 'none'; form-action 'none'"
)
"""Content security policy: nothing is loaded, and only the style and script of this very page count."""


def page(title: str, sections: list[tuple[str, str, Html]]) -> str:
    """Whole document; ``sections`` are (id, heading, body), and a heading that is empty gives no link and no heading."""
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
