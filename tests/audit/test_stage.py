"""The stage on files: what is accepted, what is left out and why, and that the numbers add up."""

import json
from dataclasses import replace
from pathlib import Path

from pipeline.artifacts import write_json
from pipeline.audit.config import AuditSection, ExpectSection, GateSection
from pipeline.audit.context import Context
from pipeline.audit.outputs import Outputs, write_audit
from pipeline.audit.source import Source, parquet
from pipeline.audit.stage import Config, run
from pipeline.schema.findings import SCHEMA as FINDINGS
from pipeline.schema.target import TargetRecord
from pipeline.schema.tokens import SCHEMA as TOKENS
from pipeline.schema.tokens import TokenRow
from pipeline.tables import read_rows
from pipeline.tokens import Tokenizer
from tests.audit.rows import answer, clean_rows, write_tokens

WRITES = {"accepted": "accepted.parquet", "findings": "audit/findings.parquet", "report": "audit/report.html", "summary": "audit/summary.json"}


def run_stage(folder: Path, record: TargetRecord, rows: list[TokenRow], gate: GateSection | None = None) -> Path:
    """Audit rows in a folder of a dataset; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "fingerprint.json", record)
    write_tokens(folder / "tokens.parquet", rows)
    for name in ("prompts", "responses"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"id": row.id}) + "\n" for row in rows))
    config = Config(
        audit=AuditSection(gate=gate or GateSection()), expect=ExpectSection(reasoning="required"), allow=[], deny=[], heldout="none", heldout_digest=None
    )
    (folder / "generate.json").write_text('{"endpoints": []}')
    run(
        config,
        prompts=folder / "prompts.jsonl",
        responses=folder / "responses.jsonl",
        generated=folder / "generate.json",
        tokens=folder / "tokens.parquet",
        record=folder / "fingerprint.json",
        **{name: folder / path for name, path in WRITES.items()},
    )
    return folder


def mixed(tokenizer: Tokenizer) -> list[TokenRow]:
    row = answer(tokenizer)
    return [
        *clean_rows(tokenizer, 3),
        answer(tokenizer, "flagged", status="flag", reason="count_mismatch: +2"),
        answer(tokenizer, "two-flags", status="flag", reason="count_mismatch: +2, truncated"),
        answer(tokenizer, "rejected", completion_ids=[], segments=[], evidence=None, status="reject", reason="no_think_close, empty_answer"),
        replace(row, id="spoiled", completion_ids=row.completion_ids[:-1]),
        answer(tokenizer, "flagged-spoiled", completion_ids=row.completion_ids[:-1], status="flag", reason="count_mismatch: +2"),
    ]


def test_every_row_is_accepted_or_counted_under_one_reason(tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    folder = run_stage(tmp_path / "d", kimi, mixed(tokenizer), GateSection(admit=["count_mismatch"]))
    summary = json.loads((folder / "audit/summary.json").read_bytes())
    assert [row["id"] for row in read_rows(folder / "accepted.parquet", TOKENS)] == ["r0", "r1", "r2", "flagged"]
    assert summary["left_out"] == {
        "flag: count_mismatch, truncated": 1,
        "reject: no_think_close, empty_answer": 1,
        "check: ends_with_end_token": 2,
    }
    assert summary["accepted"] + sum(summary["left_out"].values()) == summary["rows"] == 8


def test_flagged_rows_stay_out_unless_admitted(tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    folder = run_stage(tmp_path / "d", kimi, mixed(tokenizer))
    assert [row["id"] for row in read_rows(folder / "accepted.parquet", TOKENS)] == ["r0", "r1", "r2"]


def test_accepted_rows_are_the_rows_of_tokens_parquet_unchanged(tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    folder = run_stage(tmp_path / "d", kimi, clean_rows(tokenizer, 600))
    assert list(read_rows(folder / "accepted.parquet", TOKENS)) == list(read_rows(folder / "tokens.parquet", TOKENS))


def test_findings_name_row_check_and_position(tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    folder = run_stage(tmp_path / "d", kimi, mixed(tokenizer))
    found = [(row["id"], row["check"], row["severity"]) for row in read_rows(folder / "audit/findings.parquet", FINDINGS)]
    assert ("spoiled", "ends_with_end_token", "error") in found
    assert {row_id for row_id, _check, severity in found if severity == "error"} == {"spoiled", "flagged-spoiled"}


def test_equal_inputs_give_equal_bytes(tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    first, second = (run_stage(tmp_path / name / "d", kimi, mixed(tokenizer)) for name in ("a", "b"))
    for path in WRITES.values():
        assert (first / path).read_bytes() == (second / path).read_bytes(), path


def test_too_many_errors_or_too_few_rows_are_a_no_go_and_the_report_is_written_all_the_same(tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    folder = run_stage(tmp_path / "d", kimi, mixed(tokenizer), GateSection(max_error_rate=0.1, min_accepted=100))
    gate = json.loads((folder / "audit/summary.json").read_bytes())["gate"]
    assert gate["verdict"] == "no-go"
    assert len(gate["reasons"]) == 2
    assert "no-go" in (folder / "audit/report.html").read_text()


def test_what_is_written_does_not_depend_on_the_number_of_processes(tmp_path: Path, context: Context, tokenizer: Tokenizer) -> None:
    rows = [
        replace(row, id=f"{i}-{row.id}", provider=f"p{i % 5}", count_delta=i % 7) for i, row in enumerate([*clean_rows(tokenizer, 700), *mixed(tokenizer) * 9])
    ]
    tokens = write_tokens(tmp_path / "tokens.parquet", rows)
    responses = tmp_path / "responses.jsonl"
    responses.write_text("".join(json.dumps({"id": row.id, "model": f"m{len(row.id) % 3}", "latency_ms": len(row.id)}) + "\n" for row in reversed(rows)))
    written = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        outputs = Outputs(out / "accepted.parquet", out / "findings.parquet", out / "report.html", out / "summary.json")
        write_audit("t", Source(parquet(tokens), responses=responses), context, AuditSection(), outputs, workers=workers)
        written.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert written[0] == written[1]
    assert len(written[0]) == 4
