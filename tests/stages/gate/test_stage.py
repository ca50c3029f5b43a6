"""The gate acts on the verdict and on nothing else."""

import json
from pathlib import Path

import pytest

from pipeline.core.errors import ArtifactError, GateError
from pipeline.core.files.json_file import write_json
from pipeline.stages.gate.stage import Config, run


def summary(folder: Path, verdict: str, reasons: list[str]) -> Path:
    path = folder / "code" / "audit" / "summary.json"
    write_json(path, {"rows": 10, "accepted": 7, "gate": {"verdict": verdict, "reasons": reasons}})
    return path


def test_go_is_written_down(tmp_path: Path) -> None:
    run(Config(), summary=summary(tmp_path, "go", []), verdict=tmp_path / "gate.json")
    assert json.loads((tmp_path / "gate.json").read_bytes()) == {"verdict": "go", "accepted": 7, "rows": 10}


def test_no_go_stops_with_exit_code_1_and_names_dataset_reasons_and_report(tmp_path: Path) -> None:
    path = summary(tmp_path, "no-go", ["3 rows are left for training; gate.min_accepted is 20"])
    with pytest.raises(
        GateError, match=r"audit of code says no-go:\n  3 rows are left.*\nRead .*report.html"
    ) as caught:
        run(Config(), summary=path, verdict=tmp_path / "gate.json")
    assert caught.value.exit_code == 1
    assert not (tmp_path / "gate.json").exists()


@pytest.mark.parametrize("document", [{}, {"gate": {"verdict": "maybe", "reasons": []}, "rows": 1, "accepted": 1}, []])
def test_a_summary_without_a_verdict_stops_the_build(tmp_path: Path, document: object) -> None:
    write_json(tmp_path / "summary.json", document)
    with pytest.raises(ArtifactError, match="holds no verdict of an audit"):
        run(Config(), summary=tmp_path / "summary.json", verdict=tmp_path / "gate.json")
