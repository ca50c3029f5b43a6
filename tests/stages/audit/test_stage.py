"""The stage on files: accepted rows, rows left out with their reason, and numbers that add up."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.core.files.json_file import write_json
from pipeline.core.files.tables import read_rows
from pipeline.formats.schema.findings import SCHEMA as FINDINGS
from pipeline.formats.schema.target import TargetRecord
from pipeline.formats.schema.tokens import SCHEMA as TOKENS
from pipeline.formats.schema.tokens import TokenRow
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.file_audit import load_section
from pipeline.stages.audit.config import AuditSection, ExpectSection, GateSection
from pipeline.stages.audit.inputs.context import Context
from pipeline.stages.audit.inputs.source import Source, parquet
from pipeline.stages.audit.outputs import AuditOutputs, write_audit
from pipeline.stages.audit.stage import Config, run
from tests.conftest import DEFAULTS, ROOT
from tests.stages.audit.rows import answer, clean_rows, write_tokens

pytestmark = pytest.mark.slow

WRITES = {
    "accepted": "accepted.parquet",
    "findings": "audit/findings.parquet",
    "report": "audit/report.html",
    "summary": "audit/summary.json",
    "sketch": "audit/sketch.parquet",
    "lengths": "audit/lengths.csv",
}


def run_stage(
    folder: Path,
    record: TargetRecord,
    rows: list[TokenRow],
    gate: GateSection | None = None,
    *,
    seconds: float = 0.5,
    endpoints: Sequence[object] = (),
) -> Path:
    """Audit rows, each answered in ``seconds``, in the folder of a dataset; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "fingerprint.json", record)
    write_tokens(folder / "tokens.parquet", rows)
    for name in ("prompts", "responses"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"id": row.id}) + "\n" for row in rows))
    own = {} if gate is None else {"gate": gate.model_dump()}
    config = Config(
        audit=AuditSection(),
        own=own,
        expect=ExpectSection(reasoning="required"),
        allow=[],
        deny=[],
        heldout="none",
        heldout_digest=None,
    )
    write_json(folder / "generate.json", {"endpoints": list(endpoints)})
    (folder / "timings.jsonl").write_text(
        "".join(f'{{"provider": "{row.provider}", "seconds": {seconds}}}\n' for row in rows)
    )
    run(
        config,
        prompts=folder / "prompts.jsonl",
        responses=folder / "responses.jsonl",
        generated=folder / "generate.json",
        timings=folder / "timings.jsonl",
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
        answer(
            tokenizer,
            "rejected",
            completion_ids=[],
            segments=[],
            evidence=None,
            status="reject",
            reason="no_think_close, empty_answer",
        ),
        replace(row, id="spoiled", completion_ids=row.completion_ids[:-1]),
        answer(
            tokenizer,
            "flagged-spoiled",
            completion_ids=row.completion_ids[:-1],
            status="flag",
            reason="count_mismatch: +2",
        ),
    ]


def test_every_row_is_accepted_or_counted_under_one_reason(
    tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
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


def test_accepted_rows_are_the_rows_of_tokens_parquet_unchanged(
    tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    folder = run_stage(tmp_path / "d", kimi, clean_rows(tokenizer, 600))
    assert list(read_rows(folder / "accepted.parquet", TOKENS)) == list(read_rows(folder / "tokens.parquet", TOKENS))


def test_findings_name_row_check_and_position(tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    folder = run_stage(tmp_path / "d", kimi, mixed(tokenizer))
    found = [
        (row["id"], row["check"], row["severity"]) for row in read_rows(folder / "audit/findings.parquet", FINDINGS)
    ]
    assert ("spoiled", "ends_with_end_token", "error") in found
    assert {row_id for row_id, _check, severity in found if severity == "error"} == {"spoiled", "flagged-spoiled"}


def test_another_vocabulary_is_refused_in_a_build_too(tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    with pytest.raises(
        InputError, match=r"tokens\.parquet: these are not the ids of target 'kimi_k25': 9 of the first 9 answers"
    ):
        run_stage(
            tmp_path / "d",
            kimi,
            [answer(tokenizer, f"r{i}", completion_ids=[200_000 + i], segments=[]) for i in range(9)],
        )


def test_latencies_are_in_the_report_and_in_no_other_file(
    tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    written = []
    for seconds in (0.25, 3.0):
        folder = run_stage(tmp_path / str(seconds) / "d", kimi, clean_rows(tokenizer, 30), seconds=seconds)
        written.append({path: (folder / path).read_bytes() for path in WRITES.values()})
    assert "250 ms" in written[0]["audit/report.html"].decode()
    assert "3.00 s" in written[1]["audit/report.html"].decode()
    assert {path for path in WRITES.values() if written[0][path] != written[1][path]} == {"audit/report.html"}


def test_the_number_formats_of_the_admitted_endpoints_are_in_the_scorecard(
    tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    listed = [
        {"provider": "alpha", "quantization": "int4"},
        {"provider": "alpha", "quantization": "fp8"},
        {"provider": "beta", "quantization": "bf16"},
    ]
    folder = run_stage(tmp_path / "d", kimi, clean_rows(tokenizer, 30), endpoints=listed)
    assert json.loads((folder / "audit/summary.json").read_bytes())["providers"]["alpha"]["quantizations"] == [
        "fp8",
        "int4",
    ]
    assert "fp8, int4" in (folder / "audit/report.html").read_text()


def test_equal_inputs_give_equal_bytes(tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    first, second = (run_stage(tmp_path / name / "d", kimi, mixed(tokenizer)) for name in ("a", "b"))
    for path in WRITES.values():
        assert (first / path).read_bytes() == (second / path).read_bytes(), path


def test_too_many_errors_or_too_few_rows_are_a_no_go_and_the_report_is_written_all_the_same(
    tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    folder = run_stage(tmp_path / "d", kimi, mixed(tokenizer), GateSection(max_error_rate=0.1, min_accepted=100))
    gate = json.loads((folder / "audit/summary.json").read_bytes())["gate"]
    assert gate["verdict"] == "no-go"
    assert len(gate["reasons"]) == 2
    assert "no-go" in (folder / "audit/report.html").read_text()


FORKED = """
import sys
from pathlib import Path
from pipeline.stages.audit import workers
from pipeline.__main__ import main
config, tokens, responses, out = sys.argv[1:]
files = ["--config", config, "--tokens", tokens, "--responses", responses, "--out", out]
code = main(["audit", "--target", "kimi_k25", "--workers", "2", *files])
assert not workers._threaded
sys.exit(code)
"""
"""Program of a process that examines no rows itself, so that it forks its workers."""


def test_what_is_written_does_not_depend_on_the_number_of_processes_or_how_they_start(
    tmp_path: Path, context: Context, tokenizer: Tokenizer
) -> None:
    rows = [
        replace(row, id=f"{i}-{row.id}", provider=f"p{i % 5}", count_delta=i % 7)
        for i, row in enumerate([*clean_rows(tokenizer, 700), *mixed(tokenizer) * 9])
    ]
    tokens = write_tokens(tmp_path / "tokens.parquet", rows)
    responses = tmp_path / "responses.jsonl"
    responses.write_text(
        "".join(
            json.dumps({"id": row.id, "model": f"m{len(row.id) % 3}", "latency_ms": len(row.id)}) + "\n"
            for row in reversed(rows)
        )
    )
    section = load_section("default")
    for name, workers in (("one", 1), ("spawned", 2)):
        out = tmp_path / name
        outputs = AuditOutputs.in_folder(out)
        write_audit(
            "Audit of tokens.parquet",
            Source(parquet(tokens), responses=responses),
            context,
            section,
            outputs,
            workers=workers,
        )
    command = [
        sys.executable,
        "-c",
        FORKED,
        str(DEFAULTS / "conf/audit/default.yaml"),
        str(tokens),
        str(responses),
        str(tmp_path / "forked"),
    ]
    assert subprocess.run(command, cwd=ROOT, timeout=300).returncode == 0
    written = [
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.suffix != ".md"}
        for name in ("one", "spawned", "forked")
    ]
    assert written[0] == written[1] == written[2]
    assert len(written[0]) == 5


def test_the_lengths_are_plotted_on_edges_that_are_the_same_for_every_dataset(
    tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    rows = [
        answer(tokenizer, f"r{length}", completion_ids=[1008] * length, segments=[]) for length in (0, 1, 4, 4, 5, 64)
    ]
    folder = run_stage(tmp_path / "d", kimi, rows)
    assert (folder / "audit/lengths.csv").read_text() == "tokens,rows\n1,1\n4,2\n5,1\n64,1\n"


def test_the_bill_is_reconciled_over_all_rows_and_by_provider_and_its_outliers_are_named(
    tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    deltas = [0, 0, 1, -3, 65, None]
    rows = [
        answer(tokenizer, f"r{i}", count_delta=delta, billed_tokens=100, provider="ab"[i % 2])
        for i, delta in enumerate(deltas)
    ]
    summary = json.loads((run_stage(tmp_path / "d", kimi, rows) / "audit/summary.json").read_bytes())
    billing = summary["billing"]
    assert {key: billing[key] for key in ("rows", "equal", "mean_absolute", "max_absolute")} == {
        "rows": 5,
        "equal": 2,
        "mean_absolute": 13.8,
        "max_absolute": 65,
    }
    assert [(line["id"], line["delta"]) for line in billing["outliers"]] == [("r4", 65), ("r3", -3), ("r2", 1)]
    assert summary["providers"]["a"]["billing"]["mean_absolute"] == 22.0
    assert summary["providers"]["b"]["billing"]["mean_absolute"] == 1.5


def test_a_line_that_was_cut_behind_its_id_is_named(tmp_path: Path, context: Context, tokenizer: Tokenizer) -> None:
    write_tokens(tmp_path / "tokens.parquet", [answer(tokenizer, "r0")])
    (tmp_path / "responses.jsonl").write_text('{"id":"r0","response":{"choi')
    source = Source(parquet(tmp_path / "tokens.parquet"), None, tmp_path / "responses.jsonl")
    with pytest.raises(InputError, match=r"responses\.jsonl: a line is not JSON.*choi"):
        next(source.batches(context))
