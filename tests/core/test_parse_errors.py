"""Files that do not parse: one message with file and line, and a merge's conflict markers named for what they are."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.commands.status import main as status
from pipeline.core import parse_errors
from pipeline.core.code.modules import Module
from pipeline.core.errors import ArtifactError, ConfigError
from pipeline.core.files.json_file import read_json
from pipeline.core.process.exit_codes import BROKEN, guarded
from pipeline.project.compose import target_section
from pipeline.project.settings import load_yaml
from tests.conftest import ROOT

MERGED = "a: 1\n<<<<<<< HEAD\nb: 2\n=======\nb: 3\n>>>>>>> other\n"
MARKED = "git's conflict markers begin here, so it is not"


@pytest.mark.parametrize(
    ("text", "says"),
    [(MERGED, f"x.yaml:2: {MARKED} YAML"), ("a: 1\nb: c: d\n", "x.yaml:2: not YAML: mapping values are not allowed")],
)
def test_yaml_that_does_not_parse_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_yaml(tmp_path / "x.yaml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [('{\n<<<<<<< HEAD\n"a": 1\n', f"x.json:2: {MARKED} JSON"), ('{\n"a": 1,\n', "x.json:3: not JSON: ")],
)
def test_json_that_does_not_parse_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ArtifactError) as caught:
        read_json(tmp_path / "x.json")
    assert says in str(caught.value)


def test_the_status_does_not_take_a_damaged_file_for_a_stage_that_has_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build/code").mkdir(parents=True)
    (tmp_path / "build/config.json").write_text('{"names": ["code"], "target": {"name": "x"}}')
    (tmp_path / "build/code/calibration.json").write_text("<<<<<<< HEAD\n")
    with pytest.raises(ArtifactError, match=r"calibration.json:1: git's conflict markers"):
        status([])


def test_a_target_that_is_no_yaml_is_named_before_hydra_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/target").mkdir(parents=True)
    (tmp_path / "conf/target/mine.yaml").write_text(MERGED)
    with pytest.raises(ConfigError, match=r"conf/target/mine.yaml:2: git's conflict markers"):
        target_section("mine")


@pytest.mark.parametrize(
    ("text", "says"),
    [("<<<<<<< HEAD\n", f"broken.py:2: {MARKED} Python"), ("def f(:\n", "broken.py:2: not Python: invalid syntax")],
)
def test_a_module_that_is_no_python_is_one_message_wherever_it_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(f"A = 1\n{text}")

    def work() -> None:
        compile(broken.read_bytes(), str(broken), "exec")

    assert guarded(work) == BROKEN, "another's module is no matter of the user's"
    monkeypatch.setattr(parse_errors, "_PACKAGE", tmp_path)
    capsys.readouterr()
    assert guarded(work) == 2
    assert says in capsys.readouterr().err
    with pytest.raises(ConfigError, match=says.split(":")[0]):
        Module("broken", broken).tree  # noqa: B018 - asking is what parses


def test_a_module_that_the_program_itself_begins_with_and_that_cannot_be_imported_is_one_message(
    tmp_path: Path,
) -> None:
    package = tmp_path / "pipeline"
    (package / "core/process").mkdir(parents=True)
    for name in (
        "__init__",
        "__main__",
        "core/__init__",
        "core/parse_errors",
        "core/process/__init__",
        "core/process/start_time",
    ):
        shutil.copy(ROOT / f"pipeline/{name}.py", package / f"{name}.py")
    for text, says in (
        ("A = 1\n<<<<<<< HEAD\n", f"pipeline/core/errors.py:2: {MARKED} Python: a merge was not resolved in this file"),
        (
            "import no_such",
            f"the package 'no_such' is not installed for {sys.executable}: "
            "run `make setup`, then `source .venv/bin/activate`",
        ),
    ):
        (package / "core/errors.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", "status"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (2, f"error: {says}\n")
