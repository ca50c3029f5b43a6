"""The stage on the two files of the build."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.core.files.json_file import write_json
from pipeline.core.files.tables import read_rows
from pipeline.formats.schema.target import TargetRecord
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.calibrate.stage import Config as CalibrateConfig
from pipeline.stages.calibrate.stage import run as calibrate
from pipeline.stages.reconstruct.stage import Config, run
from tests.answers.build import CLOSE, END, body

pytestmark = pytest.mark.slow


class Build:
    """A dataset's files in a folder."""

    def __init__(self, folder: Path, record: TargetRecord) -> None:
        self.folder = folder
        write_json(folder / "fingerprint.json", record)

    def write(self, name: str, lines: list[Any]) -> None:
        text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (self.folder / name).write_text("".join(line + "\n" for line in text))

    def reconstruct(self) -> list[dict[str, Any]]:
        at = self.folder
        config = Config(send_tools=True, max_tokens=1000, extra={})
        run(
            config,
            prompts=at / "prompts.jsonl",
            responses=at / "responses.jsonl",
            record=at / "fingerprint.json",
            tokens=at / "tokens.parquet",
            summary=at / "s.json",
        )
        return list(read_rows(at / "tokens.parquet", SCHEMA))

    def calibrate(self) -> dict[str, Any]:
        at = self.folder
        calibrate(
            CalibrateConfig(),
            responses=at / "responses.jsonl",
            tokens=at / "tokens.parquet",
            record=at / "fingerprint.json",
            report=at / "report.json",
        )
        report: dict[str, Any] = json.loads((at / "report.json").read_text())
        return report


@pytest.fixture
def build(tmp_path: Path, kimi: TargetRecord) -> Build:
    return Build(tmp_path, kimi)


def prompt(name: str) -> dict[str, Any]:
    return {"id": name, "messages": [{"role": "user", "content": f"Question {name}"}], "tools": None}


def response(name: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"id": name, "key": "k", "provider": "P", "response": value, **more}


def test_rows_come_in_prompt_order_with_prompt_ids_and_statuses(build: Build) -> None:
    build.write("prompts.jsonl", [prompt(name) for name in "abcd"])
    good = body("Two plus three.", "Five.", billed=8)
    failed = {"kind": "http_400", "message": "bad request"}
    lines = [
        response("a", good),
        response("b", None, error=failed),
        response("c", good, policy="denied by name"),
        "{not json",
    ]
    build.write("responses.jsonl", lines)
    rows = build.reconstruct()
    assert [(row["id"], row["status"], row["reason"]) for row in rows] == [
        ("a", "accept", None),
        ("b", "reject", "http_400"),
        ("c", "flag", "provider_not_allowed"),
        ("d", "reject", "no_response"),
        ("line-4", "reject", "not_json"),
    ]
    assert all(row["prompt_ids"] for row in rows[:4])
    summary = json.loads((build.folder / "s.json").read_text())
    assert sum(summary["status"].values()) == 5


def test_responses_out_of_step_are_matched_by_id_and_strangers_kept(build: Build) -> None:
    build.write("prompts.jsonl", [prompt(name) for name in "abc"])
    good = body("Two plus three.", "Five.", billed=8)
    build.write(
        "responses.jsonl", [response("c", good), response("stranger", good), response("a", good), response("a", good)]
    )
    rows = build.reconstruct()
    assert [(row["id"], row["reason"]) for row in rows] == [
        ("a", None),
        ("b", "no_response"),
        ("c", None),
        ("stranger", "unknown_prompt"),
        ("a", "unknown_prompt"),
    ]


def test_the_truth_in_a_body_is_never_looked_at_and_calibrate_reads_it(build: Build, tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("Two plus three."), CLOSE, *tokenizer.encode("Five."), END]
    other = [*ids[:-2], 0, END]
    bodies = [body("Two plus three.", "Five.", billed=8), body("Two plus three.", "Five.", billed=8)]
    build.write("prompts.jsonl", [prompt("a"), prompt("b")])
    build.write("responses.jsonl", [response("a", bodies[0]), response("b", bodies[1])])
    build.reconstruct()
    without = (build.folder / "tokens.parquet").read_bytes(), (build.folder / "s.json").read_bytes()
    assert build.calibrate()["truth"] == "none"
    for value, truth in zip(bodies, (ids, other), strict=True):
        value["x_truth"] = {"output_ids": truth}
    build.write("responses.jsonl", [response("a", bodies[0]), response("b", bodies[1])])
    build.reconstruct()
    assert ((build.folder / "tokens.parquet").read_bytes(), (build.folder / "s.json").read_bytes()) == without
    report = build.calibrate()
    assert (report["rows"], report["exact"], report["text"]) == (2, 1, 1)
    assert report["by_evidence"]["count"]["rows"] == 2
    assert report["differences"][0]["id"] == "b"
    assert report["differences"][0]["position"] == 6


def test_a_missing_file_is_one_message(build: Build) -> None:
    build.write("prompts.jsonl", [prompt("a")])
    with pytest.raises(InputError, match=r"responses\.jsonl"):
        build.reconstruct()
    assert not (build.folder / "tokens.parquet").exists()


def test_a_body_that_is_no_strict_json_is_read_from_its_base64(build: Build) -> None:
    odd = b'{"choices": [{"message": {"content": "x \\ud83d"}, "finish_reason": "stop"}]}'
    torn = b'{"choices": [{"mess'
    build.write("prompts.jsonl", [prompt("a"), prompt("b")])
    encoded = [
        {**response(name, None), "response_base64": base64.b64encode(raw).decode()}
        for name, raw in (("a", odd), ("b", torn))
    ]
    build.write("responses.jsonl", encoded)
    assert [row["reason"] for row in build.reconstruct()] == ["text_not_utf8", "not_a_completion"]


def test_tools_are_in_the_prompt_only_when_they_were_sent(build: Build) -> None:
    tools = [
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    build.write("prompts.jsonl", [{**prompt("a"), "tools": tools}])
    build.write("responses.jsonl", [response("a", body("Two plus three.", "Five.", billed=8))])
    with_tools = build.reconstruct()[0]["prompt_ids"]
    at = build.folder
    files = {name: at / f"{name}.jsonl" for name in ("prompts", "responses")}
    run(
        Config(send_tools=False, max_tokens=1000, extra={}),
        **files,
        record=at / "fingerprint.json",
        tokens=at / "t.parquet",
        summary=at / "s.json",
    )
    assert len(next(iter(read_rows(at / "t.parquet", SCHEMA)))["prompt_ids"]) < len(with_tools)


def test_prompt_ids_of_the_engine_win_over_the_rendered_ones(build: Build) -> None:
    value = {**body("Two plus three.", "Five.", billed=8), "prompt_token_ids": [1, 2, 163606]}
    build.write("prompts.jsonl", [prompt("a")])
    build.write("responses.jsonl", [response("a", value)])
    (row,) = build.reconstruct()
    assert row["prompt_ids"] == [1, 2, 163606]
    assert "prompt_ids_differ_from_engine" in row["notes"]
