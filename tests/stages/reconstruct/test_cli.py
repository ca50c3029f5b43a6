"""The command on files: every line becomes a row, and the counts add up."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.commands.reconstruct import main
from pipeline.core.errors import InputError
from pipeline.core.files.tables import read_rows
from pipeline.formats.schema.tokens import SCHEMA
from tests.answers.build import CLOSE, END, body

pytestmark = pytest.mark.slow


def rebuild(tmp_path: Path, lines: list[bytes], *more: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    source, out, summary = tmp_path / "in.jsonl", tmp_path / "tokens.parquet", tmp_path / "summary.json"
    source.write_bytes(b"\n".join(lines) + b"\n")
    assert (
        main(["--target", "kimi_k25", "--responses", str(source), "--out", str(out), "--summary", str(summary), *more])
        == 0
    )
    return list(read_rows(out, SCHEMA)), json.loads(summary.read_text())


def test_every_kind_of_line_becomes_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        json.dumps({"id": "a", "response": body("Two plus three.", "Five.", billed=8)}).encode(),
        json.dumps({**body("Two plus three.", "Five.", billed=8), "id": "gen-1"}).encode(),
        json.dumps(
            {"id": "c", "reasoning": "Two plus three.", "content": "Five.", "usage": {"completion_tokens": 8}}
        ).encode(),
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


GOOD = body("Two plus three.", "Five.", billed=8)


def test_a_file_without_a_response_is_refused(tmp_path: Path) -> None:
    for content in (b"", b" \n\n"):
        (tmp_path / "in.jsonl").write_bytes(content)
        with pytest.raises(InputError, match=r"in\.jsonl: empty; --responses takes a JSONL file"):
            main(
                [
                    "--target",
                    "kimi_k25",
                    "--responses",
                    str(tmp_path / "in.jsonl"),
                    "--out",
                    str(tmp_path / "out.parquet"),
                ]
            )
    assert not (tmp_path / "out.parquet").exists()


def test_repeated_ids_and_rejected_rows_are_kept_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"id": name, "response": GOOD} for name in ("a", "b", "a", "", "x\ny")]
    failed = {"id": "q", "response": None, "error": {"kind": "http_502", "message": "bad gateway"}}
    rows, summary = rebuild(tmp_path, [json.dumps(line).encode() for line in (*lines, failed)])
    assert [row["id"] for row in rows] == ["a", "b", "a", "line-4", "x\ny", "q"]
    assert rows[-1]["reason"] == "http_502"
    assert summary["repeated_ids"] == {"ids": 1, "rows": 2, "example": "a"}
    said = capsys.readouterr().out
    assert "1 ids come more than once (2 rows; 'a')" in said
    assert "'q: http_502: http_502: bad gateway'" in said


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_packed_files_are_told_by_their_content(tmp_path: Path, codec: str, ending: str) -> None:
    content = json.dumps({"id": "a", "response": GOOD}).encode() + b"\n"
    packed = gzip.compress(content) if codec == "gzip" else pa.compress(content, codec="zstd", asbytes=True)
    (tmp_path / f"in.jsonl{ending}").write_bytes(packed)
    main(
        [
            "--target",
            "kimi_k25",
            "--responses",
            str(tmp_path / f"in.jsonl{ending}"),
            "--out",
            str(tmp_path / "out.parquet"),
        ]
    )
    assert [row["status"] for row in read_rows(tmp_path / "out.parquet", SCHEMA)] == ["accept"]


def test_what_is_read_is_never_written_over(tmp_path: Path) -> None:
    source, link = tmp_path / "in.jsonl", tmp_path / "link"
    source.write_text(content := json.dumps({"id": "a", "response": GOOD}) + "\n")
    link.hardlink_to(source)
    for outputs in (
        ["--out", str(source)],
        ["--out", str(link)],
        ["--out", str(tmp_path / "t"), "--summary", str(source)],
    ):
        with pytest.raises(InputError, match="is also an input and would be overwritten"):
            main(["--target", "kimi_k25", "--responses", str(source), *outputs])
    with pytest.raises(InputError, match="is named for two outputs"):
        main(
            [
                "--target",
                "kimi_k25",
                "--responses",
                str(source),
                "--out",
                str(tmp_path / "t"),
                "--summary",
                str(tmp_path / "t"),
            ]
        )
    assert source.read_text() == content
    assert not (tmp_path / "t").exists()


def test_a_table_in_place_of_responses_is_refused(tmp_path: Path) -> None:
    rebuild(tmp_path, [json.dumps({"id": "a", "response": GOOD}).encode()])
    with pytest.raises(InputError, match=r"tokens\.parquet: Parquet; --responses takes a JSONL file"):
        main(
            [
                "--target",
                "kimi_k25",
                "--responses",
                str(tmp_path / "tokens.parquet"),
                "--out",
                str(tmp_path / "out.parquet"),
            ]
        )


def test_parts_that_are_no_text_are_rejected_rows(tmp_path: Path) -> None:
    lines = [
        {
            "id": "part",
            "messages": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
            "response": GOOD,
        },
        {"id": "bare", "messages": [{"role": "user", "content": ["Hi"]}], "response": GOOD},
        {"id": "text", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "response": GOOD},
    ]
    rows, _ = rebuild(tmp_path, [json.dumps(line).encode() for line in lines])
    assert [(row["id"], row["reason"]) for row in rows] == [
        ("part", "prompt_not_rendered"),
        ("bare", "prompt_not_rendered"),
        ("text", None),
    ]
    assert any("only text can be rendered" in note for note in rows[0]["notes"])


def test_values_nested_deeply_are_rejected_rows_wherever_they_stand(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "Hi"}]
    tool = {"type": "function", "function": {"name": "f", "parameters": "DEEP"}}
    called = {
        "role": "assistant",
        "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "DEEP"}}],
    }
    places: list[dict[str, Any]] = [
        {
            "response": body(
                "Think.", None, [{"id": "functions.f:0", "function": {"name": "f", "arguments": "DEEP"}}], billed=8
            )
        },
        {"response": {"usage": {"completion_tokens": "DEEP"}, "choices": "DEEP"}},
        *(
            {"messages": value, "response": GOOD}
            for value in ("DEEP", [{"role": "user", "content": "DEEP"}], [*asked, called])
        ),
        {"messages": asked, "tools": [tool], "response": GOOD},
        {"output_ids": "DEEP"},
    ]
    deep = [
        text
        for depth in (90, 120, 900, 995, 20_000)
        for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth)
    ]
    written = [
        json.dumps({"id": f"row-{n}", **place}).replace('"DEEP"', text).encode()
        for n, place in enumerate(places)
        for text in deep
    ]
    rows, summary = rebuild(tmp_path, written)
    assert len(rows) == len(written) == summary["lines"]
    by_depth = [{row["reason"] for row in rows[at :: len(deep)]} for at in range(len(deep))]
    assert "nested_too_deeply" not in by_depth[0] | by_depth[1]
    assert by_depth[2:6] == [{"nested_too_deeply"}] * 4
    assert all(reasons <= {"nested_too_deeply", "not_json"} for reasons in by_depth[6:])
    assert {row["id"] for row in rows if row["reason"] == "nested_too_deeply"} == {
        f"row-{n}" for n in range(len(places))
    }
