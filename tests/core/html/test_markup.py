"""Markup: every value becomes text on the page."""

from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.html.frame import POLICY, page
from pipeline.core.html.markup import Html, join, safe, tag, visible
from pipeline.project.report.markdown import code


class Reader(HTMLParser):
    """The tags and the text that a browser would read."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


HOSTILE = st.one_of(
    st.text(),
    st.sampled_from(
        ["<script>", "</td>", '" onload="x', "'><img src=x>", "&lt;", "<!--", "]]>", "\x00", "\u202e", "{{x}}"]
    ),
)


@given(content=HOSTILE, attribute=HOSTILE)
@settings(deadline=None, max_examples=300)
def test_any_text_stays_text_in_content_and_in_attributes(content: str, attribute: str) -> None:
    found = read(tag("p", content, title=attribute))
    assert found.tags == [("p", [("title", visible(attribute))])]
    assert found.text == visible(content)


def test_markup_is_kept_and_none_is_nothing() -> None:
    assert join(tag("b", "a"), None, "<", 3) == "<b>a</b>&lt;3"
    assert isinstance(safe("x"), Html)


def test_attributes_are_written_as_html_has_them() -> None:
    assert (
        tag("input", type="search", data_filter="x", class_="a", hidden=True, disabled=False, title=None)
        == '<input type="search" data-filter="x" class="a" hidden>'
    )
    assert tag("line", x1=0) == '<line x1="0"></line>'


def test_what_cannot_be_seen_is_written_out() -> None:
    assert visible("a\x00b\u202ec\u200bd\te\nf") == "a⟨U+0000⟩b⟨U+202E⟩c⟨U+200B⟩d\te\nf"


def test_a_page_allows_its_own_style_and_script_and_nothing_else() -> None:
    assert POLICY.startswith("default-src 'none'; ")
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
    found = page("<t>", [("a", "A & B", tag("p", "x"))])
    assert "<title>&lt;t&gt;</title>" in found
    assert found.index("Content-Security-Policy") < found.index("<style>")


@given(text=st.text())
@settings(deadline=None, max_examples=200)
def test_markdown_has_no_active_characters_left(text: str) -> None:
    found = code(text)
    inside = found.removeprefix("<code>").removesuffix("</code>")
    assert "\n" not in found
    assert len(found) == len(inside) + len("<code></code>")
    assert not set("`*_[]<>|!~@\\\u202e") & set(inside)
