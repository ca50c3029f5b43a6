"""The audit's report in a browser: no request leaves, no model output runs, the keyboard suffices."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.file_audit import load_section
from pipeline.stages.audit.inputs.context import Context
from pipeline.stages.audit.inputs.source import Source, parquet
from pipeline.stages.audit.outputs import AuditOutputs, write_audit
from tests.browser import CHROMIUM, Browser
from tests.conftest import ROOT
from tests.stages.audit.rows import answer, clean_rows, write_tokens

SCREENSHOTS = ROOT / "outputs" / "screenshots"
"""Folder for screenshots to look at; git ignores it."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="no Chromium here: `apt-get install chromium` (`.ci/run` does), then the report is tried in it",
    ),
]

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "</i></div></details><style>main{display:none}</style>"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, context: Context, tokenizer: Tokenizer) -> Path:
    """A report with spoiled rows, and a row that is hostile in every field that a provider fills."""
    folder = tmp_path_factory.mktemp("report")
    rows = clean_rows(tokenizer, 300)
    spoiled = [
        replace(row, id=f"cut-{i}", completion_ids=row.completion_ids[:-1], segments=[])
        for i, row in enumerate(rows[:40])
    ]
    hostile = answer(
        tokenizer,
        HOSTILE,
        content=f"{HOSTILE}\x07\u202e \u9f98",
        provider=HOSTILE,
        finish_reason=HOSTILE,
        notes=[HOSTILE],
        status="flag",
        reason=HOSTILE,
    )
    names = [replace(row, provider=("alpha", "beta", "gamma")[i % 3]) for i, row in enumerate(rows)]
    all_rows = [*names, *spoiled, hostile]
    lines = [
        {"id": row.id, "model": HOSTILE, "latency_ms": 100 + i, "response": {"usage": {"cost": 0.001}}}
        for i, row in enumerate(all_rows)
    ]
    (folder / "responses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = Source(parquet(write_tokens(folder / "tokens.parquet", all_rows)), responses=folder / "responses.jsonl")
    outputs = AuditOutputs.in_folder(folder)
    write_audit("Audit of hostile rows", source, context, load_section("default"), outputs)
    return outputs.report


@pytest.fixture
def page(report: Path) -> Iterator[Browser]:
    with Browser() as browser:
        browser.open(report)
        yield browser


def test_the_page_loads_without_a_complaint_and_nothing_leaves(page: Browser, report: Path) -> None:
    assert page.complaints() == []
    assert page.requests() == [report.resolve().as_uri()]
    page.screenshot(SCREENSHOTS / "audit.png", height=2400)


def test_hostile_output_stays_text(page: Browser) -> None:
    page.run("document.querySelectorAll('details').forEach(row => row.open = true)")
    assert page.run("document.title") == "Audit of hostile rows"
    assert page.run("document.querySelectorAll('img, iframe, object, embed, link, base, form').length") == 0
    assert (
        page.run("document.querySelectorAll('script').length")
        == page.run("document.querySelectorAll('style').length")
        == 1
    )
    assert page.run("document.querySelector('main').offsetHeight > 1000")
    assert page.run("document.getElementById('rows').textContent.includes('onerror=')")
    assert page.run("document.body.textContent.includes('\\u202e')") is False
    assert page.complaints() == []


def test_a_script_that_got_into_the_page_would_not_run(page: Browser) -> None:
    page.run(
        "document.body.insertAdjacentHTML('beforeend', "
        '\'<img src="data:image/png;base64,x" onerror="document.title=1">\')'
    )
    page.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'document.title = 2'; "
        "document.body.append(s); })()"
    )
    assert page.run("document.title") == "Audit of hostile rows"
    assert any("Content Security Policy" in said for said in page.complaints())


def test_every_section_is_there_and_linked(page: Browser) -> None:
    sections = page.run("[...document.querySelectorAll('main > section')].map(section => section.id)")
    assert sections == ["verdict", "checks", "providers", "evidence", "distributions", "findings", "rows"]
    assert page.run(
        "[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.getAttribute('href')))"
    )
    assert page.run(
        "[...document.querySelectorAll('svg')]"
        ".every(s => s.getAttribute('aria-label') && s.getBoundingClientRect().height > 50)"
    )
    assert page.run("document.querySelectorAll('#distributions rect').length") > 20


def test_a_column_sorts_up_and_down_by_keyboard(page: Browser) -> None:
    values = "[...document.querySelectorAll('#check-rows tr')].map(row => Number(row.cells[2].dataset.v))"
    page.run("document.querySelectorAll('#checks th button')[2].focus()")
    page.key("Enter", 13)
    assert page.run(values) == sorted(page.run(values), reverse=True)
    page.key("Enter", 13)
    assert page.run(values) == sorted(page.run(values))
    assert page.run("document.querySelectorAll('#checks th')[2].getAttribute('aria-sort')") == "ascending"


def test_a_filter_hides_what_does_not_match_and_says_how_many_are_left(page: Browser) -> None:
    page.run(
        "(() => { const f = document.querySelector('#checks input'); f.value = 'end token'; "
        "f.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    shown = page.run(
        "[...document.querySelectorAll('#check-rows tr')].filter(row => !row.hidden)"
        ".map(row => row.querySelector('b').textContent)"
    )
    assert set(shown) >= {"ends_with_end_token", "one_end_token"}
    assert "round_trip" not in shown
    assert page.run("document.querySelector('#checks output').textContent").startswith(f"{len(shown)} of ")
    page.run(
        "(() => { const f = document.querySelector('#rows select'); f.value = 'one_end_token'; "
        "f.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    kinds = page.run(
        "[...document.querySelectorAll('#row-list details')].filter(row => !row.hidden).map(row => row.dataset.kind)"
    )
    assert kinds
    assert all("one_end_token" in kind.split() for kind in kinds)


def test_the_first_tab_reaches_the_verdict_and_a_row_opens_by_its_link(page: Browser) -> None:
    page.key("Tab", 9)
    assert page.run("document.activeElement.textContent") == "Skip to the verdict"
    page.run("document.querySelector('#checks a').click()")
    assert page.run("new Promise(done => setTimeout(() => done(document.querySelector(':target').open), 0))") is True


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_the_whole_width_in_light_and_dark(report: Path, dark: bool) -> None:
    with Browser(width=390, height=844, dark=dark) as phone:
        phone.open(report)
        assert phone.run("document.documentElement.scrollWidth") == 390
        ground = phone.run("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") is not dark
        phone.screenshot(SCREENSHOTS / f"audit-phone-{'dark' if dark else 'light'}.png", width=390, height=2400)
