"""`--explain ID`: all facts of one row, and no control characters."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.stages.audit.rows import answer, clean_rows, write_tokens

pytestmark = pytest.mark.slow


def explain(tmp_path: Path, tokenizer: Tokenizer, row_id: str) -> int:
    rows = [
        *clean_rows(tokenizer, 3),
        replace(clean_rows(tokenizer, 2)[1], id="twin"),
        answer(
            tokenizer,
            "odd",
            content="One\x1b[2Jtwo \u9f98.",
            status="flag",
            reason="count_mismatch: +2",
            notes=["seam: newline"],
        ),
    ]
    tokens = write_tokens(tmp_path / "tokens.parquet", rows)
    responses = tmp_path / "responses.jsonl"
    responses.write_text(
        "".join(
            json.dumps({"id": row.id, "response": {"choices": [{"message": {"content": f"raw {row.id}\x1b"}}]}}) + "\n"
            for row in rows
        )
    )
    return main(
        ["audit", "--target", "kimi_k25", "--tokens", str(tokens), "--responses", str(responses), "--explain", row_id]
    )


def test_raw_answer_segments_tokens_evidence_and_findings_are_shown(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(tmp_path, tokenizer, "odd") == 0
    said = capsys.readouterr().out
    for part in (
        "row odd: flag (count_mismatch: +2)",
        "evidence: ids",
        "notes: seam: newline",
        "warn control_characters at ",
        "raw odd",
        "reasoning, tokens 0 to 3:",
        "163607  </think>",
        "163586  <|im_end|>",
        "'Two'",
        "bytes ",
    ):
        assert part in said, part
    assert "raw r0" not in said


def test_what_comparing_rows_has_found_is_shown(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(tmp_path, tokenizer, "twin") == 0
    said = capsys.readouterr().out
    assert "warn duplicate_prompts: same prompt as r1" in said
    assert "warn duplicate_completions: same answer as r1" in said


def test_no_control_character_reaches_the_terminal(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    explain(tmp_path, tokenizer, "odd")
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\\x1b" in said or "U+001B" in said


def test_an_unknown_id_is_exit_code_2_and_names_some_that_exist(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(tmp_path, tokenizer, "nobody") == 2
    assert "no row has the id 'nobody'; the file begins with ['r0', 'r1', 'r2']" in capsys.readouterr().err


def test_neither_an_audit_nor_a_row_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["audit", "--target", "kimi_k25", "--tokens", str(tmp_path)])
    assert caught.value.code == 2
