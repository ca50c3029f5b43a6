"""The command on files: every line becomes a row, and the counts add up."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.reconstruct.cli import main
from pipeline.schema.tokens import SCHEMA
from pipeline.tables import read_rows
from tests.answers.build import CLOSE, END, body


def rebuild(tmp_path: Path, lines: list[bytes], *more: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    source, out, summary = tmp_path / "in.jsonl", tmp_path / "tokens.parquet", tmp_path / "summary.json"
    source.write_bytes(b"\n".join(lines) + b"\n")
    assert main(["--target", "kimi_k25", "--responses", str(source), "--out", str(out), "--summary", str(summary), *more]) == 0
    return list(read_rows(out, SCHEMA)), json.loads(summary.read_text())


def test_every_kind_of_line_becomes_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        json.dumps({"id": "a", "response": body("Two plus three.", "Five.", billed=8)}).encode(),
        json.dumps({**body("Two plus three.", "Five.", billed=8), "id": "gen-1"}).encode(),
        json.dumps({"id": "c", "reasoning": "Two plus three.", "content": "Five.", "usage": {"completion_tokens": 8}}).encode(),
        json.dumps({"id": "d", "output_ids": [CLOSE, 687, END]}).encode(),
        b'{"id": "e", ',
        b"17",
        json.dumps({"id": "g"}).encode(),
        b'{"id": "h", "response": {"choices": [{"message": {"content": "x \\ud83d"}, "finish_reason": "stop"}]}}',
        json.dumps({"id": "i", "response": None}).encode(),
    ]
    rows, summary = rebuild(tmp_path, lines)
    assert [(row["id"], row["status"]) for row in rows] == [
        ("a", "accept"),
        ("gen-1", "accept"),
        ("c", "accept"),
        ("d", "accept"),
        ("line-5", "reject"),
        ("line-6", "reject"),
        ("g", "reject"),
        ("h", "reject"),
        ("i", "reject"),
    ]
    assert rows[0]["completion_ids"] == rows[1]["completion_ids"] == rows[2]["completion_ids"]
    assert rows[4]["reason"] == "not_json"
    assert summary["lines"] == len(lines) == sum(summary["status"].values()) == sum(summary["evidence"].values())
    assert "accept" in capsys.readouterr().out


def test_the_table_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    lines = [json.dumps({"id": str(n), "response": body("Two plus three.", "Five " * n, billed=8 + n)}).encode() for n in range(700)]
    digests = set()
    for workers in ("1", "2", "3"):
        rebuild(tmp_path, lines, "--workers", workers)
        digests.add((tmp_path / "tokens.parquet").read_bytes())
    assert len(digests) == 1
