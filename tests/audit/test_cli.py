"""`python -m pipeline audit` on files, as a user runs it."""

import json
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.tokens import Tokenizer
from tests.audit.rows import answer, clean_rows, write_tokens


def audit(tokens: Path, out: Path, *more: str) -> int:
    return main(["audit", "--target", "kimi_k25", "--tokens", str(tokens), "--out", str(out), *more])


def test_clean_rows_pass_with_exit_code_0(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokens = write_tokens(tmp_path / "tokens.parquet", clean_rows(tokenizer, 30))
    assert audit(tokens, tmp_path / "out") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("accepted.parquet", "findings.parquet", "report.html", "sketch.parquet", "summary.json", "summary.md")
    }


def test_a_no_go_is_exit_code_1_and_says_why(tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = write_tokens(tmp_path / "tokens.parquet", [answer(tokenizer)])
    assert audit(tokens, tmp_path / "out") == 1
    assert "1 rows are left for training; gate.min_accepted is 20" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "summary.json").read_bytes())["gate"]["verdict"] == "no-go"


def test_an_unknown_check_in_the_config_is_exit_code_2_and_names_the_known(tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("round_trips: {severity: error}\n")
    tokens = write_tokens(tmp_path / "tokens.parquet", clean_rows(tokenizer, 1))
    assert audit(tokens, tmp_path / "out", "--config", str(config)) == 2
    message = capsys.readouterr().err
    assert "unknown checks ['round_trips']" in message
    assert "'round_trip'" in message


def test_a_truncated_parquet_file_is_exit_code_2(tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = write_tokens(tmp_path / "tokens.parquet", clean_rows(tokenizer, 30))
    tokens.write_bytes(tokens.read_bytes()[:-100])
    assert audit(tokens, tmp_path / "out") == 2
    assert "not a whole Parquet file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_read_is_never_written_over(tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = write_tokens(tmp_path / "accepted.parquet", clean_rows(tokenizer, 2))
    before = tokens.read_bytes()
    assert audit(tokens, tmp_path) == 2
    assert "accepted.parquet: is read as well, and would be written over" in capsys.readouterr().err
    assert tokens.read_bytes() == before
