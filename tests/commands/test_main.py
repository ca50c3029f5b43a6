"""The command line: exit codes, messages, and what a light command must not load."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import __main__ as cli
from pipeline.core.errors import GateError, InputError
from pipeline.core.process.exit_codes import BROKEN, INTERRUPTED, guarded
from pipeline.graph import BY_NAME, STAGES
from tests.conftest import ROOT
from tests.polling import is_alive, wait_until


def test_an_error_that_the_user_can_act_on_is_one_message_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise InputError("data/x.jsonl:3: not JSON")

    assert guarded(work) == 2
    assert capsys.readouterr().err == "error: data/x.jsonl:3: not JSON\n"


def test_the_gates_no_is_exit_1() -> None:
    def work() -> None:
        raise GateError("no-go")

    assert guarded(work) == 1


def test_a_fault_of_ours_shows_where_and_is_never_taken_for_a_no_go(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise ZeroDivisionError("planted")

    assert guarded(work) == BROKEN == 70
    assert "ZeroDivisionError: planted" in capsys.readouterr().err


def test_a_place_where_one_may_not_write_is_a_message_and_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    assert guarded(work) == 2
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path}: Permission denied; check that you may read and write there, and run again\n"
    )


def test_an_interrupted_stage_never_exits_0() -> None:
    def work() -> None:
        raise KeyboardInterrupt

    assert guarded(work) == INTERRUPTED == 130


def test_an_unknown_command_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reconstrct"]) == 2
    said = capsys.readouterr().err
    assert "no command 'reconstrct'" in said
    assert all(stage.name in said for stage in STAGES)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["audit"], "takes DATASET, one of ['code']"),
        (["audit", "nowhere"], "no dataset 'nowhere' in params.yaml; there are ['code']"),
        (["train", "code"], "takes no argument"),
        (["audit", "code"], "has no 'audit'"),
    ],
)
def test_a_stage_says_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    (tmp_path / "build/config.json").write_text(json.dumps({"names": ["code"], "datasets": {"code": {}}}))
    assert guarded(lambda: cli.run_stage(BY_NAME[arguments[0]], arguments[1:])) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_help_lists_every_command_and_each_has_a_module_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in cli.COMMANDS:
        if command == "compose":
            continue
        try:
            code = cli.main([command, "--help"])
        except SystemExit as ended:  # argparse's way
            code = int(ended.code or 0)
        said = capsys.readouterr()
        assert code == 0, f"{command} --help: {said.err}"
        assert command in said.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("pipeline.__main__", ["torch", "hydra", "pyarrow", "httpx", "transformers", "rich"]),
        ("pipeline.stages.prompts.stage", ["torch", "hydra", "httpx", "transformers"]),
        ("pipeline.stages.generate.stage", ["torch", "hydra", "transformers"]),
        ("pipeline.stages.reconstruct.stage", ["torch", "hydra", "httpx"]),
        ("pipeline.stages.audit.stage", ["torch", "hydra", "httpx"]),
        ("pipeline.stages.gate.stage", ["torch", "hydra", "httpx", "pyarrow", "transformers"]),
        ("pipeline.stages.export.stage", ["hydra", "httpx"]),
    ],
)
def test_a_light_command_starts_without_heavy_libraries(module: str, heavy: list[str]) -> None:
    script = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


FOLLOWING_STAGE = """
import os, time
from pipeline.core.process.parent_death import follow_parent
follow_parent()
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stage_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """DVC killed with SIGKILL cannot end its stage, which would go on spending: the stage follows by itself."""
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {FOLLOWING_STAGE!r}])"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_alive(child))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stage_ends_with_the_dvc_behind_a_shell_that_waits_for_it() -> None:
    """dash runs the stage as its child, and lives on when DVC is killed."""
    dvc = """
import subprocess, sys
subprocess.run(["/bin/sh", "-c", '"$@"; true', "sh", sys.executable, "-c", sys.argv[1]])
"""
    with subprocess.Popen(
        [sys.executable, "-c", dvc, FOLLOWING_STAGE],
        cwd=ROOT,
        env={**os.environ, "DVC_STAGE": "train", "SHELL": ""},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert is_alive(child)
        process.kill()
        process.stdout.read()  # to the end of the pipe, which the stage has as well
    wait_until(lambda: not is_alive(child))


_ORPHAN = """
import os, sys, time
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.01)
from pipeline.core.process.parent_death import follow_parent
parent = os.getppid()
print(open(f"/proc/{parent}/comm").read().strip() if parent != 1 else "init", flush=True)
follow_parent()
print("lives on")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("by_dvc", [True, False])
def test_a_stage_whose_dvc_died_before_it_could_follow_ends_and_one_that_a_person_let_go_of_does_not(
    by_dvc: bool,
) -> None:
    """A stage takes a moment to load, in which DVC may be killed."""
    parent = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {_ORPHAN!r}, str(os.getpid())])"
    environment = (
        {**os.environ, "DVC_STAGE": "train"}
        if by_dvc
        else {name: value for name, value in os.environ.items() if name != "DVC_STAGE"}
    )
    done = subprocess.run(
        [sys.executable, "-c", parent],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    taken_in_by, *said = done.stdout.splitlines()  # to the end of the pipe, which the orphan has as well
    if taken_in_by not in ("init", "systemd"):
        pytest.skip(f"orphans are taken in by {taken_in_by} here")
    assert said == ([] if by_dvc else ["lives on"])


@pytest.mark.skipif(sys.platform != "linux", reason="by the kernel's signal")
def test_a_stage_whose_parent_died_while_it_was_starting_ends_as_well() -> None:
    script = "import os; from pipeline.core.process.parent_death import follow_parent; follow_parent(os.getppid() + 1)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("name", ["gate", "prompts"])
def test_a_stage_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: python -m pipeline {name} DATASET\n")
    assert f"writes: build/DATASET/{'audit/gate.json' if name == 'gate' else 'prompts.jsonl'}" in said
