"""The comment fits and names what does not; the page is self-contained; no text of a row acts as markup in either."""

import html
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.project.report.markdown import inert
from pipeline.project.versions.diff import html_page, markdown_page, wording
from pipeline.project.versions.diff.difference import Change, DatasetDifference, Difference, RowCounts
from pipeline.project.versions.diff.tokendiff import ChangedRow, SequenceDiff, TokenSpan

HOSTILE = "</code></details>```\n```` @everyone <script>alert(1)</script> | [x](http://example.org) <!-- -->"


def rows(**counts: Any) -> RowCounts:
    values = dict.fromkeys(
        (
            "old",
            "new",
            "unchanged",
            "added",
            "removed",
            "renamed",
            "changed",
            "changed_prompt",
            "changed_completion",
            "changed_record_only",
        ),
        0,
    )
    kinds: dict[str, list[str]] = {"added": [], "removed": [], "renamed": [], "changed": [HOSTILE]}
    return RowCounts(**{**values, **counts}, ids=kinds, totals={}, mix={"provider": {HOSTILE: (1, 2)}})


def difference(text: str, *, datasets: int = 1, examples: int = 1, config: int = 1) -> Difference:
    span = TokenSpan([1, 2], text, 0)
    diff = SequenceDiff(0, 0, 2, 2, span, span, span, False)
    shown = [ChangedRow(text, ["completion"], None, diff, {"provider": (text, "b")}) for _ in range(examples)]
    found = Difference(
        text, "HEAD", config=[Change(f"a.{n}.{text}", "changed", text, 1) for n in range(config)], notes=[text]
    )
    for n in range(datasets):
        head = dict.fromkeys(("rows", "accepted", "completion_tokens", "cost_usd", "exact", "verdict"), (text, 1))
        found.datasets.append(
            DatasetDifference(
                f"d{n}",
                "both",
                rows(old=9, new=9, changed=9),
                head,
                {text: [Change("x", "changed", 1, 2)]},
                shown,
                [text],
            )
        )
    found.rerun = {f"audit@{text}": [text]}
    return found


def outside_fences(text: str) -> str:
    """Return the text outside fenced blocks; by CommonMark a block ends at a fence at least as long as its first."""
    kept, fence = [], ""
    for line in text.split("\n"):
        run = re.match(r"`{3,}", line)
        if fence:
            if run and len(run[0]) >= len(fence) and not line.strip("`").strip():
                fence = ""
        elif run:
            fence = run[0]
        else:
            kept.append(line)
    assert not fence, "a block was left open"
    return "\n".join(kept)


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=60))
def test_no_text_of_a_row_acts_as_markup(text: str) -> None:
    hostile = text + HOSTILE
    free = outside_fences(markdown_page.render(difference(hostile)))
    assert "<script" not in free
    assert "@everyone" not in free
    assert "[x](http" not in re.sub(r"<code>[^<]*</code>", "", free)
    assert free.count("<details>") == free.count("</details>")
    assert free.count("<code>") == free.count("</code>")
    for line in free.split("\n"):
        if line.startswith("| <code>d0"):
            assert line.count("|") == 11, "a cell broke the table"


def test_quotes_are_shown_as_quotes() -> None:
    text = """{'a': "b"} don't &#39; <c> #1"""
    assert html.unescape(inert(text)) == text


def test_rows_that_could_not_be_compared_are_not_called_unchanged() -> None:
    found = Difference(
        "a",
        "b",
        config=[Change("x", "changed", 1, 2)],
        datasets=[DatasetDifference("one", "both"), DatasetDifference("two", "both", rows(added=3))],
    )
    found.datasets[0].notes = ["gone"]
    assert wording.summary(found).startswith(
        "3 rows added, 0 removed, 0 changed; rows could not be compared of one; config"
    )
    found.datasets.pop()
    assert wording.summary(found).startswith("rows could not be compared of one; config values changed: 1; ")


@pytest.mark.parametrize(("datasets", "examples", "config"), [(1, 1, 1), (60, 20, 3000), (300, 0, 0), (3, 500, 10)])
def test_it_fits_into_a_comment_and_says_what_was_left_out(datasets: int, examples: int, config: int) -> None:
    text = markdown_page.render(difference("word " * 20, datasets=datasets, examples=examples, config=config))
    assert len(text) <= markdown_page.LIMIT
    assert text.startswith(markdown_page.MARK)
    assert ("do not fit" in text) is (datasets > 1)
    assert text.count("<details>") == text.count("</details>")


def test_a_short_comment_is_still_known_as_ours() -> None:
    text = markdown_page.render(difference("word", datasets=60), 1000)
    assert len(text) <= 1000
    assert text.startswith(f"{markdown_page.MARK}\n## Data: ")


def test_an_empty_difference_says_so() -> None:
    assert "No difference" in markdown_page.render(Difference("a", "b"))
    assert "No difference" in html_page.render(Difference("a", "b"))


def test_the_page_escapes_everything_and_needs_no_network() -> None:
    text = html_page.render(difference(HOSTILE))
    assert text.count("<script") == 1  # the frame's own, which the content security policy names by its digest
    assert "Content-Security-Policy" in text
    assert "alert(1)" in text
    assert not re.search(r"""src=|href="[^#]""", text)
    assert text.count("<details") == text.count("</details>")
