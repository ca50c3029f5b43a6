"""`python -m pipeline audit` on files, as a user runs it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.targets import open_target
from tests.stages.audit.rows import answer, clean_rows, write_tokens

pytestmark = pytest.mark.slow


def audit(tokens: Path, out: Path, *more: str) -> int:
    return main(["audit", "--target", "kimi_k25", "--tokens", str(tokens), "--out", str(out), *more])


def test_clean_rows_pass_with_exit_code_0(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokens = write_tokens(tmp_path / "tokens.parquet", clean_rows(tokenizer, 30))
    assert audit(tokens, tmp_path / "out") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("accepted.parquet", "findings.parquet", "report.html", "sketch.parquet", "summary.json", "summary.md")
    }


def test_a_no_go_is_exit_code_1_and_says_why(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = write_tokens(tmp_path / "tokens.parquet", [answer(tokenizer)])
    assert audit(tokens, tmp_path / "out") == 1
    assert "1 rows are left for training; gate.min_accepted is 20" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "summary.json").read_bytes())["gate"]["verdict"] == "no-go"


def test_an_unknown_check_in_the_config_is_exit_code_2_and_names_the_known(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("round_trips: {severity: error}\n")
    tokens = write_tokens(tmp_path / "tokens.parquet", clean_rows(tokenizer, 1))
    assert audit(tokens, tmp_path / "out", "--config", str(config)) == 2
    message = capsys.readouterr().err
    assert "unknown checks ['round_trips']" in message
    assert "'round_trip'" in message


def test_a_truncated_parquet_file_is_exit_code_2(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = write_tokens(tmp_path / "tokens.parquet", clean_rows(tokenizer, 30))
    tokens.write_bytes(tokens.read_bytes()[:-100])
    assert audit(tokens, tmp_path / "out") == 2
    assert "not a whole Parquet file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_read_is_never_written_over(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = write_tokens(tmp_path / "accepted.parquet", clean_rows(tokenizer, 2))
    before = tokens.read_bytes()
    assert audit(tokens, tmp_path) == 2
    assert "accepted.parquet: is also an input and would be overwritten" in capsys.readouterr().err
    assert tokens.read_bytes() == before


def test_response_lines_that_anyone_wrote_are_joined_as_reconstruct_named_them(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        replace(row, id=name)
        for row, name in zip(clean_rows(tokenizer, 4), ("7", "line-2", "line-4", "c"), strict=True)
    ]
    tokens, responses = write_tokens(tmp_path / "tokens.parquet", rows), tmp_path / "in.jsonl"
    said = {"usage": {"completion_tokens": 1, "cost": 0.5}, "choices": []}
    lines = [
        json.dumps({"id": 7, "response": said}),
        json.dumps(said),
        '{"id": "x", "content": "\\ud83d"}',
        "{oops",
        json.dumps({"id": "c", "response": said}),
    ]
    responses.write_text("\n".join(lines) + "\n")
    assert audit(tokens, tmp_path / "out", "--responses", str(responses)) in (0, 1)
    assert (
        "in.jsonl: 2 of 5 lines are not JSON, so their rows are audited without them; line 3: "
        in capsys.readouterr().err
    )
    for name, known in (("7", True), ("line-2", True), ("line-4", False), ("c", True)):
        main(
            ["audit", "--target", "kimi_k25", "--tokens", str(tokens), "--responses", str(responses), "--explain", name]
        )
        assert ("response as received" in capsys.readouterr().out) is known, name


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\x1f\x8bxxxx", "packed; --responses is read by position"), (b"{oops\n", "no line is JSON; line 1: ")],
)
def test_responses_that_cannot_be_read_at_all_are_exit_code_2(
    content: bytes, message: str, tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = write_tokens(tmp_path / "tokens.parquet", clean_rows(tokenizer, 1))
    (tmp_path / "in.jsonl").write_bytes(content)
    assert audit(tokens, tmp_path / "out", "--responses", str(tmp_path / "in.jsonl")) == 2
    assert message in capsys.readouterr().err


def test_values_nested_deeply_are_findings_or_text_and_never_an_exception(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = '{"a": ' * 900 + "1" + "}" * 900
    record, qwen = open_target("qwen3")
    opened, closed, end = (record.role_id(role) for role in ("call_open", "call_close", "end"))
    ids = [*qwen.encode("Say.\n"), opened, *qwen.encode('\n{"name": "f", "arguments": ' + deep + "}\n"), closed, end]
    (tmp_path / "qwen.jsonl").write_text(json.dumps({"id": "a", "output_ids": ids}) + "\n")
    assert (
        main(["audit", "--target", "qwen3", "--tokens", str(tmp_path / "qwen.jsonl"), "--out", str(tmp_path / "out")])
        == 1
    )
    row = answer(tokenizer, "a", calls=[("f", {"a": 1})])
    tokens, prompts, responses = (
        write_tokens(tmp_path / "tokens.parquet", [row]),
        tmp_path / "prompts.jsonl",
        tmp_path / "responses.jsonl",
    )
    prompts.write_text(
        '{"id": "a", "messages": [], "tools": [{"type": "function", "function": {"name": "f", "parameters": '
        + deep
        + "}}]}\n"
    )
    responses.write_text('{"id": "a", "response": ' + deep + "}\n")
    more = ["--prompts", str(prompts), "--responses", str(responses)]
    assert audit(tokens, tmp_path / "out", *more) == 1
    capsys.readouterr()
    assert main(["audit", "--target", "kimi_k25", "--tokens", str(tokens), *more, "--explain", "a"]) == 0
    said = capsys.readouterr().out
    assert "the request's schema is nested too deep to be checked" in said
    assert "response as received" in said


@pytest.mark.parametrize("target", ["kimi_k25", "qwen3", "deepseek_v3"])
def test_rows_that_reconstruct_makes_pass_in_every_chat_format(target: str, tmp_path: Path) -> None:
    record, _ = open_target(target)
    reasoning = "Think of {}." if record.roles.think_close else ""
    tool = {
        "type": "function",
        "function": {"name": "get_time", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
    lines = []
    for number in range(24):
        call = {
            "id": f"functions.get_time:{0}",
            "type": "function",
            "function": {"name": "get_time", "arguments": json.dumps({"a": number})},
        }
        message = {
            "role": "assistant",
            "reasoning": reasoning.format(number),
            "content": f"Number {number}.",
            "tool_calls": [call] if number % 2 else None,
        }
        response = {
            "choices": [{"index": 0, "finish_reason": "tool_calls" if number % 2 else "stop", "message": message}]
        }
        asked = [{"role": "user", "content": f"Say {number}"}]
        lines.append({"id": f"r{number}", "messages": asked, "tools": [tool], "response": response})
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert (
        main(["reconstruct", "--target", target, "--responses", str(source), "--out", str(tmp_path / "tokens.parquet")])
        == 0
    )
    main(
        [
            "audit",
            "--target",
            target,
            "--tokens",
            str(tmp_path / "tokens.parquet"),
            "--prompts",
            str(source),
            "--out",
            str(tmp_path / "out"),
        ]
    )
    checks = json.loads((tmp_path / "out" / "summary.json").read_bytes())["checks"]
    assert {
        name: check["rows"] for name, check in checks.items() if check["severity"] == "error" and check["rows"]
    } == {}


@pytest.mark.parametrize("huge", [2**31, 2**63, 2**64 - 1])
def test_numbers_that_no_answer_has_are_not_believed(huge: int, tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = clean_rows(tokenizer, 3)
    usage = {
        "prompt_tokens": huge,
        "completion_tokens": huge,
        "completion_tokens_details": {"reasoning_tokens": huge},
        "cost": 1e308,
    }
    lines = [{"id": row.id, "latency_ms": 1e308, "response": {"usage": usage}} for row in rows]
    tokens, responses = write_tokens(tmp_path / "tokens.parquet", rows), tmp_path / "responses.jsonl"
    responses.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert audit(tokens, tmp_path / "out", "--responses", str(responses)) == 1
    summary = (tmp_path / "out" / "summary.json").read_text()
    assert "Infinity" not in summary
    assert str(huge) not in summary
