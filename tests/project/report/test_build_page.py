"""The page of a build, from the small files that exist."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.core.files.atomic import write_text
from pipeline.core.files.json_file import write_json
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.stages.audit.rows import clean_rows
from tests.stages.audit.test_stage import run_stage

pytestmark = pytest.mark.slow

GENERATE = {
    "answered": 3,
    "completion_tokens": 99,
    "cost_usd": 0.25,
    "by_provider": {"<b>alpha": {"answers": 3, "completion_tokens": 99, "cost_usd": 0.25}},
}
GROUP = {
    "rows": 3,
    "exact": 2,
    "segmentation": 1,
    "text": 0,
    "none": 0,
    "exact_rate": 0.6667,
    "exact_interval": [0.2, 0.9],
}
EVAL = {
    "draft_tokens": 4,
    "acceptance_length": 3.125,
    "per_position": [0.9, 0.5],
    "anchors": {"oracle": 5.0, "untrained": 1.0},
    "datasets": {"code": {"acceptance_length": 3.1, "prompts": 24}},
}


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a composed build and nothing else."""
    monkeypatch.chdir(tmp_path)
    config: dict[str, Any] = {
        "names": ["code", "tools"],
        "budget": {"usd": 2.0},
        "datasets": {"code": {"budget": {"usd": 1.0}}, "tools": {}},
    }
    write_json(Path("build/config.json"), config)
    return tmp_path / "build"


def written() -> str:
    assert main(["report"]) == 0
    return Path("build/report.html").read_text("utf-8")


def test_a_build_of_which_nothing_is_made_has_a_page_that_says_so(build: Path) -> None:
    found = written()
    for part in ("Under way", "Not audited yet: code, tools", "No drafter is trained yet", "Nothing is audited yet"):
        assert part in found


def test_a_folder_without_a_build_is_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    assert "run `python -m pipeline compose` first" in capsys.readouterr().err


def test_a_whole_build_shows_verdicts_cost_calibration_overlap_and_the_drafter(
    build: Path, kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    run_stage(build / "code", kimi, clean_rows(tokenizer, 30))
    near = replace(clean_rows(tokenizer, 6)[5], id="near", prompt_ids=[1, 2, 3])
    near.completion_ids[-2] += 1
    run_stage(build / "tools", kimi, [*clean_rows(tokenizer, 2), near])
    write_json(build / "code" / "generate.json", GENERATE)
    write_json(build / "code" / "calibration.json", {**GROUP, "by_evidence": {"text": GROUP}})
    write_json(build / "drafter" / "eval.json", EVAL)
    write_text(
        build / "drafter" / "log.csv",
        "step,loss,accuracy_0,heldout_acceptance\n1,5.5,0.1,\n2,4.5,0.2,2.5\n3,3.5,0.3,2.75\n",
    )
    found = written()
    for part in (
        'href="code/audit/report.html"',
        "Done",
        "$0.25",
        "&lt;b&gt;alpha",
        "66.67%",
        "20.0% – 90.0%",
        'code</td><td>tools</td><td class="n" data-v="2">2</td>'
        '<td class="n" data-v="2">2</td><td class="n" data-v="1">1</td>',
        "<code>r5</code> and <code>near</code>",
        "3.125",
        "Anchor: untrained",
        "Training loss",
        "32",
    ):
        assert part in found, part


def test_a_no_go_is_named_first(build: Path, kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    run_stage(build / "code", kimi, clean_rows(tokenizer, 30))
    summary = json.loads((build / "code/audit/summary.json").read_bytes())
    summary["gate"] = {"verdict": "no-go", "reasons": ["too <few> rows"]}
    write_json(build / "code/audit/summary.json", summary)
    found = written()
    assert "The gate stops code" in found
    assert "too &lt;few&gt; rows" in found


def test_damaged_small_files_are_taken_as_missing(build: Path) -> None:
    for path in ("code/audit/summary.json", "code/generate.json", "drafter/eval.json"):
        write_text(build / path, "{")
    write_text(build / "drafter/log.csv", "\x00\xff")
    assert "Under way" in written()


def test_the_markdown_has_every_audited_dataset(
    build: Path, kimi: TargetRecord, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stage(build / "code", kimi, clean_rows(tokenizer, 30))
    assert main(["report", "--markdown"]) == 0
    found = capsys.readouterr().out
    assert "| <code>code</code> | go | 30 | 30 |" in found
    assert "tools" not in found
    assert not (build / "report.html").exists()
