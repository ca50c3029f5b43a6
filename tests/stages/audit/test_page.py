"""The report stays small for any rows, and a browser opens it quickly."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.config import AuditSection
from pipeline.stages.audit.inputs.context import Context
from pipeline.stages.audit.inputs.source import Source, parquet
from pipeline.stages.audit.outputs import AuditOutputs, write_audit
from tests.browser import CHROMIUM, Browser
from tests.conftest import SHARE
from tests.stages.audit.rows import THINK_CLOSE, answer, clean_rows, write_tokens
from tests.stages.audit.test_checks import all_cases

pytestmark = pytest.mark.slow

MOST = 3_000_000


def audit(folder: Path, context: Context, source: Source) -> Path:
    outputs = AuditOutputs.in_folder(folder)
    write_audit("t", source, context, AuditSection(), outputs)
    return outputs.report


def test_hostile_rows_cannot_make_the_page_large(tmp_path: Path, context: Context, tokenizer: Tokenizer) -> None:
    long = [token for i in range(800) for token in tokenizer.encode(f'<a href="{i}">&\u9f98\x07')]
    rows = []
    for name, cases in all_cases(tokenizer).items():
        for number, case in enumerate(cases):
            ids = [*case.row.completion_ids[:2], *long, *case.row.completion_ids[2:]]
            huge = f"<{name}{number}" + "x" * 50_000
            rows.append(
                replace(
                    case.row,
                    id=huge,
                    completion_ids=ids,
                    segments=[],
                    provider=huge,
                    finish_reason=huge,
                    notes=[huge],
                    status="flag",
                    reason=huge,
                )
            )
    rows += [replace(row, id=f"{i}-{row.id}", provider=f"p{i}") for i, row in enumerate(clean_rows(tokenizer, 300))]
    responses = tmp_path / "responses.jsonl"
    responses.write_text(
        "".join(
            json.dumps({"id": row.id, "model": row.id * 2, "error": {"message": row.id}, "policy": row.id}) + "\n"
            for row in rows
        )
    )
    report = audit(
        tmp_path, context, Source(parquet(write_tokens(tmp_path / "tokens.parquet", rows)), responses=responses)
    )
    assert report.stat().st_size < MOST
    assert (tmp_path / "summary.json").stat().st_size < MOST / 10


def test_tens_of_thousands_of_rows_give_a_page_that_is_small_and_opens_at_once(
    tmp_path: Path, context: Context, tokenizer: Tokenizer
) -> None:
    rows = [replace(row, segments=[]) for row in clean_rows(tokenizer, 1000)]
    faults = [
        answer(tokenizer, completion_ids=row.completion_ids[: -1 - i % 3], segments=[])
        for i, row in enumerate(rows[:100])
    ]
    many = (
        replace(row, id=f"{turn}-{i}", provider=f"p{i % 5}")
        for turn in range(100 // SHARE)
        for i, row in enumerate([*rows[:900], *faults])
    )
    report = audit(tmp_path, context, Source(parquet(write_tokens(tmp_path / "tokens.parquet", many))))
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    assert summary["rows"] == 100_000 // SHARE
    assert summary["checks"]["ends_with_end_token"]["rows"] == 10_000 // SHARE
    assert THINK_CLOSE in rows[0].completion_ids
    assert report.stat().st_size < MOST
    if CHROMIUM is not None:
        with Browser() as browser:
            browser.open(report)
            assert browser.worked() < 1
            assert browser.complaints() == []
