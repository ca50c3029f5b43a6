"""The probe prints what the tokenizer does, and ends with code 2 when the map does not fit."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.commands.probe import main
from pipeline.core.errors import TokenizerError
from pipeline.model.tokenizer.probe import seam_lines
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.conftest import DEFAULTS, ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["kimi_k25", "tiny_kimi", "qwen3", "deepseek_v3"])
def test_a_shipped_target_has_no_faults(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--target", name])
    shown = capsys.readouterr().out
    assert "faults: none" in shown
    assert "by segments: " in shown
    assert "comes back whole" in shown
    assert "the markers became text" in shown


def test_seams_show_where_joined_text_has_other_ids(tokenizer: Tokenizer) -> None:
    shown = {line.split(" apart ")[0].strip(): line for line in seam_lines(tokenizer)}
    assert "no effect" in next(line for text, line in shown.items() if text.startswith("'42'"))
    assert "joined [25702, 341]" in next(line for text, line in shown.items() if text.startswith("'Done.'"))


@pytest.fixture
def other_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(DEFAULTS / "conf", tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "conf" / "target" / "kimi_k25.yaml"


@pytest.mark.parametrize(
    ("found", "put", "complaint"),
    [
        ('"<|im_end|>": 163586', '"<|im_end|>": 163533', "it is the ordinary text 'chas'"),
        ('"</think>": 163607', '"</think>": 163850', "outside the model's vocabulary"),
        ("sha256: c", "sha256: d", "the tokenizer's digest is"),
    ],
    ids=["ordinary id", "beyond", "digest"],
)
def test_a_wrong_target_is_named_after_everything_is_shown(
    other_conf: Path, capsys: pytest.CaptureFixture[str], found: str, put: str, complaint: str
) -> None:
    text = other_conf.read_text()
    assert found in text
    other_conf.write_text(text.replace(found, put))
    with pytest.raises(TokenizerError, match=complaint):
        main(["--target", "kimi_k25"])
    assert "seams:" in capsys.readouterr().out


def test_the_command_ends_with_two_on_a_fault(other_conf: Path) -> None:
    other_conf.write_text(other_conf.read_text().replace('"<think>": 163606', '"<think>": 163608'))
    command = [sys.executable, "-m", "pipeline", "probe", "--target", "kimi_k25"]
    done = subprocess.run(
        command,
        cwd=other_conf.parents[2],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "163608 is '<|reserved_token_163608|>'" in done.stderr
    assert "Traceback" not in done.stderr
