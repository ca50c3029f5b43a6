"""The command on files of true ids."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.calibrate import main
from pipeline.core.errors import InputError
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.targets import open_target
from pipeline.stages.calibrate.provider_simulator import ProviderSimulator
from tests.answers.build import ARGS, CALL, CALL_END, CLOSE, END, TOOLS, TOOLS_END, body

pytestmark = pytest.mark.slow


def calibrate(tmp_path: Path, lines: list[dict[str, Any]]) -> dict[str, Any]:
    source, out = tmp_path / "truth.jsonl", tmp_path / "report.json"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["--target", "kimi_k25", "--truth", str(source), "--out", str(out)]) == 0
    report: dict[str, Any] = json.loads(out.read_text())
    return report


def test_bare_ids_are_simulated_under_every_habit(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    section = [
        TOOLS,
        CALL,
        *tokenizer.encode("functions.f:0"),
        ARGS,
        *tokenizer.encode('{"q": "東京"}'),
        CALL_END,
        TOOLS_END,
    ]
    plain = [*tokenizer.encode("Think."), CLOSE, *tokenizer.encode("Say it."), END]
    tools = [*tokenizer.encode("Think."), CLOSE, *section, END]
    other = [*tokenizer.encode("Think."), CLOSE, 40, 1491, 53791, 288, *tokenizer.encode(" fun."), END]
    report = calibrate(
        tmp_path, [{"id": str(n), "output_ids": ids, "dataset": f"d{n}"} for n, ids in enumerate((plain, tools, other))]
    )
    simulated = report["simulated"]
    for habit in ("ids", "logprobs, true bytes", "logprobs, decoded text"):
        assert (simulated[habit]["exact"], simulated[habit]["rows"]) == (3, 3), habit
    assert simulated["text"]["exact"] == 2
    assert simulated["text"]["segmentation"] == 1
    assert simulated["text"]["by_dataset"]["d2"]["segmentation"] == 1
    assert simulated["text"]["by_evidence"]["count"]["exact"] == 2
    assert simulated["text, tool tokens in content"]["exact"] == 2
    assert simulated["text, close tag in content"]["by_status"]["accept"]["exact"] >= 1
    assert simulated["text, end token not billed"]["by_evidence"]["count"]["exact"] == 2
    for entry in simulated.values():
        accepted = entry["by_status"].get("accept", {"rows": 0, "exact": 0})
        assert accepted["rows"] == accepted["exact"]
    assert "text, no usage" in capsys.readouterr().out


def test_a_real_response_is_rebuilt_without_a_look_at_the_truth(tmp_path: Path, tokenizer: Tokenizer) -> None:
    true = [*tokenizer.encode("Think."), CLOSE, 40, 1491, 53791, 288, *tokenizer.encode(" fun."), END]
    report = calibrate(
        tmp_path, [{"id": "a", "output_ids": true, "response": body("Think.", "I am having fun.", billed=len(true))}]
    )
    assert (report["received"]["rows"], report["received"]["exact"], report["received"]["segmentation"]) == (1, 0, 1)
    difference = report["received"]["differences"][0]
    assert (difference["rebuilt"][difference["position"]], difference["position"]) == (" having", 5) or difference[
        "position"
    ] > 0


@pytest.mark.parametrize("token", [-1, 163_840, 1 << 40])
def test_an_id_that_the_target_does_not_have_is_named_with_its_line(tmp_path: Path, token: int) -> None:
    with pytest.raises(
        InputError, match=rf"truth\.jsonl:2: output_ids has {token}; target 'kimi_k25' has the ids 0 to 163839"
    ):
        calibrate(tmp_path, [{"id": "a", "output_ids": [END]}, {"id": "b", "output_ids": [5, token, END]}])


def test_a_file_without_truth_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no line has output_ids"):
        calibrate(tmp_path, [{"id": "a", "response": body("a", "b")}])


def test_true_ids_are_never_written_over_and_lines_without_them_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrate(tmp_path, [{"id": "a", "output_ids": [CLOSE, 687, END]}, {"id": "b", "output_ids": "12"}, {"id": "c"}])
    assert "2 of 3 lines are left out: they have no output_ids that are a list of ids" in capsys.readouterr().out
    source = tmp_path / "truth.jsonl"
    before = source.read_bytes()
    with pytest.raises(InputError, match="is also an input and would be overwritten"):
        main(["--target", "kimi_k25", "--truth", str(source), "--out", str(source)])
    assert source.read_bytes() == before


def test_a_call_of_deepseek_is_simulated_with_its_name_and_arguments(tmp_path: Path) -> None:
    record, tokenizer = open_target("deepseek_v3")
    opened, call, args, close, end, last = (
        record.role_id(role) for role in ("tools_open", "call_open", "call_args", "call_close", "tools_close", "end")
    )
    said = [
        *tokenizer.encode("Say."),
        opened,
        call,
        *tokenizer.encode("function"),
        args,
        *tokenizer.encode('f\n```json\n{"a": 1}\n```'),
        close,
        end,
        last,
    ]
    simulator = ProviderSimulator(record, tokenizer)
    message = simulator.habits["text"](said, "none")["choices"][0]["message"]  # type: ignore[arg-type]
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    (tmp_path / "truth.jsonl").write_text(json.dumps({"id": "a", "output_ids": said}) + "\n")
    assert (
        main(
            [
                "--target",
                "deepseek_v3",
                "--truth",
                str(tmp_path / "truth.jsonl"),
                "--out",
                str(tmp_path / "report.json"),
            ]
        )
        == 0
    )
    simulated = json.loads((tmp_path / "report.json").read_text())["simulated"]
    assert {name: entry["exact"] for name, entry in simulated.items()} == dict.fromkeys(simulated, 1)
