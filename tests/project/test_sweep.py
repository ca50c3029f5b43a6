"""Sweeps: arguments for Hydra and DVC, refusals before anything runs, and real sweeps over instant stages."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

from pipeline import sweep as module
from pipeline.core.errors import BusyError, ConfigError
from pipeline.project.experiments import SweepJob, last_words, show
from pipeline.project.params import Params
from pipeline.sweep import _multirun, check_arguments, check_values, dvc_list_item, hydra_arguments, locked, run_job
from tests.conftest import ROOT
from tests.instant_stages import InstantBuild
from tests.polling import is_alive, wait_until

TRICKY = [
    "train.lr=3e-4",
    "target=kimi_k25",
    "+a.b=[1,2]",
    "~c",
    "a='x y'",
    'a="x, y"',
    "a=b=c",
    "a=é",
    "a=\\\\",
    'a=\\"',
    "a={b: 1, c: [x]}",
    "a=",
    "a=null",
    "a=x\\",
    "a= spaced ",
    "a=100%",
    "a=#no comment",
]


def through_dvc(overrides: list[str], folder: Path) -> list[str]:
    """What DVC makes of `-S overrides=[...]` in params.yaml."""
    from dvc.utils.hydra import apply_overrides
    from ruamel.yaml import YAML

    path = folder / "params.yaml"
    path.write_text("datasets:\n- a\noverrides: []\n")
    apply_overrides(str(path), [f"overrides=[{','.join(map(dvc_list_item, overrides))}]"])
    found: list[str] = YAML(typ="safe").load(path.read_text())["overrides"]
    return found


def test_every_override_reaches_params_as_it_was(tmp_path: Path) -> None:
    assert through_dvc(TRICKY, tmp_path) == TRICKY


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.text(
            st.characters(codec="ascii", exclude_characters="\r\n", min_codepoint=32), min_size=1, max_size=12
        ).filter(lambda text: "${" not in text),
        min_size=1,
        max_size=3,
    )
)
def test_any_text_reaches_params_as_it_was(tmp_path_factory: pytest.TempPathFactory, overrides: list[str]) -> None:
    assert through_dvc(overrides, tmp_path_factory.mktemp("params")) == overrides


def test_a_long_reason_and_the_paths_in_it_stay_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    reason = f"{'error ' * 60}(all of it: multirun/a/sweep-b.log)"
    show([SweepJob("sweep-b", ["a=1"], "failed", 1.0, reason=reason)], Path("multirun/a/sweep.json"))
    assert f"sweep-b failed: {reason}" in capsys.readouterr().err.splitlines()


def test_an_interpolation_is_refused() -> None:
    with pytest.raises(ConfigError, match="a sweep cannot pass interpolations on"):
        dvc_list_item("train.lr=${audit.x}")


def test_datasets_and_overrides_of_params_come_first_and_give_way_to_the_users() -> None:
    params = Params(["tools", "code"], ["train.lr=1", "train.seed=3", "target=kimi_k25"])
    found = hydra_arguments(["-m", "train.lr=2,3", "+x=1"], params, Path("multirun/x"))
    mine = [argument for argument in found if not argument.startswith("hydra")]
    assert mine == [
        "-m",
        "+dataset@datasets.code=code",
        "+dataset@datasets.tools=tools",
        "train.seed=3",
        "target=kimi_k25",
        "train.lr=2,3",
        "+x=1",
    ]


def test_the_stages_own_error_is_shown_before_dvcs() -> None:
    output = (
        "Running stage 'train':\n> python\nepoch 1\n"
        "error: the loss is not a number\nERROR: failed to reproduce 'train'\n"
    )
    assert last_words(output) == "error: the loss is not a number | ERROR: failed to reproduce 'train'"
    assert last_words("one\ntwo\n\n") == "two"


def test_what_belongs_to_an_error_is_shown_with_it() -> None:
    output = (
        "error: the configuration has 2 mistakes:\n  train.lr: no number\n  train.seed: no integer\n"
        "ERROR: failed to reproduce 'compose'\n"
    )
    assert last_words(output).startswith(
        "error: the configuration has 2 mistakes: train.lr: no number train.seed: no integer | ERROR"
    )


@pytest.mark.parametrize(
    ("figures", "value"), [({"acceptance_length": 2.5}, 2.5), ({"acceptance_length": None}, 0.0), ({}, 0.0)]
)
def test_an_optimising_sweeper_gets_a_number_also_for_a_failed_job(
    monkeypatch: pytest.MonkeyPatch, figures: dict[str, Any], value: float
) -> None:
    job_settings = SimpleNamespace(
        overrides=SimpleNamespace(task=["+dataset@datasets.code=code", "train.lr=7"]),
        sweep=SimpleNamespace(dir="multirun/x"),
    )
    asked: list[list[str]] = []

    def job(overrides: list[str], folder: Path) -> SweepJob:
        asked.append(overrides)
        return SweepJob("sweep-x", overrides, "done" if figures else "failed", 1.0, figures=figures)

    monkeypatch.setattr("pipeline.sweep.HydraConfig.get", lambda: job_settings)
    monkeypatch.setattr("pipeline.sweep.run_job", job)
    found = _multirun.__wrapped__(DictConfig({}))
    assert (found, asked) == (value, [["train.lr=7"]])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-m", "train.lr=1,2", "--config-name=other"], "'--config-name=other' is not a flag of a sweep"),
        (["-m", "train.lr=1,2", "--cfg", "job"], "'--cfg' is not a flag"),
        (["-m", "--jsn", "train.lr=1,2"], "'--jsn' is not a flag"),
        (["-m", "train.lr=1,2", "hydra.sweep.dir=elsewhere"], "its records lie under multirun/"),
        (["-m", "train.lr=1,2", "hydra.job.chdir=true"], "the sweep itself sets this"),
        (["-m", "train.lr=1,2", "+dataset@datasets.more=code"], "params.yaml names the datasets to build"),
        (["-m", "datasets=[code],[tools]"], "params.yaml names the datasets to build"),
        (["-m", "=1", "train.lr=1"], "sets no key"),
        (["train.lr=1,2"], "usage"),
    ],
)
def test_arguments_that_would_lead_elsewhere_are_refused(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        check_arguments(arguments)


def test_help_is_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main(["--help"]) == 0
    assert "usage: python -m pipeline.sweep -m" in capsys.readouterr().out


def test_the_same_sweep_runs_once_at_a_time(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "sweep"),
        pytest.raises(BusyError, match="the same sweep is running already"),
        locked(tmp_path / "sweep"),
    ):
        pass
    with locked(tmp_path / "sweep"):
        pass


def test_a_value_of_the_wrong_type_is_told_before_the_first_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    params = Params(["code"], [])
    check_values(["-m", "train.lr=1e-3,1e-4"], params)
    assert capsys.readouterr().err == ""
    check_values(["-m", "train.lr=abc,1e-4", "hydra/launcher=joblib"], params)
    assert capsys.readouterr().err.startswith(
        "1 of 2 jobs cannot be built:\n  train.lr: Input should be a valid number"
    )
    with pytest.raises(ConfigError, match=r"2 of 2 jobs cannot be built:\n  train\.lr"):
        check_values(["-m", "train.lr=abc,def"], params)
    with pytest.raises(ConfigError, match="tries listed values only, and an interval has none"):
        check_values(["-m", "train.lr=interval(1,2)"], params)
    check_values(
        ["-m", "hydra/sweeper=optuna", "train.lr=interval(1,2)"], params
    )  # what it will ask for is not known yet


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What a job finds: how its experiment ends, and whether there is one of its name before and after."""
    found = SimpleNamespace(ends=("done", None, ["train"]), there=[False, True])
    monkeypatch.setattr("pipeline.project.experiments.head", lambda: "c")
    monkeypatch.setattr("pipeline.project.experiments.exists", lambda *_: found.there.pop(0))
    monkeypatch.setattr("pipeline.project.experiments.run", lambda *_: found.ends)
    monkeypatch.setattr("pipeline.project.experiments.figures", lambda *_: {"acceptance_length": 2.0})
    return found


def test_a_job_that_another_sweep_finished_first_is_no_failure(job: SimpleNamespace, tmp_path: Path) -> None:
    job.ends = ("failed", "conflicts with existing experiment", ["train"])
    found = run_job(["train.lr=1"], tmp_path)
    assert (found.status, found.reason, found.figures) == ("kept", None, {"acceptance_length": 2.0})


def test_a_job_asked_for_twice_keeps_the_record_of_its_run(job: SimpleNamespace, tmp_path: Path) -> None:
    run_job(["train.lr=1"], tmp_path)
    assert run_job(["train.lr=1"], tmp_path).status == "kept"
    assert [json.loads(path.read_bytes())["status"] for path in tmp_path.glob("*.json")] == ["done"]


@pytest.mark.parametrize(("code", "raised"), [(143, SystemExit), (2, ConfigError)])
def test_a_sweep_that_is_told_to_end_does_not_blame_hydra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, raised: type[BaseException]
) -> None:
    def end() -> None:
        print("[HYDRA] Launching 2 jobs locally")
        raise SystemExit(code)

    monkeypatch.setattr(module, "_multirun", end)
    monkeypatch.setattr(sys, "argv", ["sweep"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")
    with pytest.raises(raised):
        module._run_all(["-m", "train.lr=1,2"], Params(["code"], []), tmp_path / "sweep", is_new=True)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_experiment_ends_when_its_sweep_is_killed(tmp_path: Path) -> None:
    (tmp_path / "dvc").mkdir()
    (tmp_path / "dvc/__init__.py").touch()
    (tmp_path / "dvc/cli.py").write_text(
        "import os, pathlib, time\n"
        "def main(argv):\n"
        "    pathlib.Path(argv[-1]).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    script = (
        "import pathlib; from pipeline.project.experiments import run; "
        f"run('name', {str(tmp_path / 'pid')!r}, pathlib.Path({str(tmp_path / 'log')!r}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    ) as parent:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        experiment = int((tmp_path / "pid").read_text())
        assert is_alive(experiment)
        parent.kill()
    wait_until(lambda: not is_alive(experiment))


def test_a_launchers_own_process_follows_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[bool] = []
    monkeypatch.setattr(module, "follow_parent", lambda: followed.append(True))
    monkeypatch.setattr(
        "pipeline.sweep.HydraConfig.get",
        lambda: SimpleNamespace(overrides=SimpleNamespace(task=[]), sweep=SimpleNamespace(dir="x")),
    )
    monkeypatch.setattr("pipeline.sweep.run_job", lambda *_: SweepJob("sweep-x", [], "done", 1.0))
    for process, follows in ((os.getpid(), 0), (os.getppid(), 1)):
        monkeypatch.setenv("AERIE_SWEEP_PROCESS", str(process))
        _multirun.__wrapped__(DictConfig({}))
        assert len(followed) == follows


@pytest.fixture
def workspace(instant_build: InstantBuild, tmp_path: Path) -> InstantBuild:
    return instant_build.copy(tmp_path / "w")


def sweep(workspace: InstantBuild, *arguments: str, code: int = 0) -> list[dict[str, Any]]:

    done = workspace.run(sys.executable, "-m", "pipeline.sweep", "-m", *arguments, "--json", check=False)
    assert done.returncode == code, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)  # and nothing else stands there
    return found


def refused(workspace: InstantBuild, *arguments: str) -> str:

    before = workspace.run("git", "status", "--porcelain", "--ignored").stdout
    done = workspace.run(sys.executable, "-m", "pipeline.sweep", *arguments, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    after = workspace.run("git", "status", "--porcelain", "--ignored").stdout
    assert [line for line in after.split("\n") if "pycache" not in line] == [
        line for line in before.split("\n") if "pycache" not in line
    ]
    assert workspace.runs() == []
    return done.stderr + done.stdout


@pytest.mark.slow
def test_jobs_over_training_never_make_data_again_and_a_failed_one_stops_no_other(workspace: InstantBuild) -> None:
    jobs = sweep(workspace, "train.lr=7,0.1", code=1)
    assert [job["status"] for job in jobs] == ["done", "failed"]
    assert "the training diverged" in jobs[1]["reason"]
    assert {run.split()[0] for run in workspace.runs()} == {"train", "evaluate", "export"}
    assert all(set(job["stages"]) <= {"compose", "train", "evaluate", "export"} for job in jobs)
    assert jobs[0]["figures"]["acceptance_length"] > 1
    assert jobs[0]["figures"]["cost_usd"] == 0.012
    assert workspace.run("dvc", "exp", "list", "--name-only").stdout.split() == [jobs[0]["name"]]
    assert workspace.run("git", "status", "--porcelain").stdout == ""

    again = sweep(workspace, "train.lr=7,0.1", code=1)
    assert [job["status"] for job in again] == ["kept", "failed"], "only what is missing runs again"
    assert again[0]["figures"] == jobs[0]["figures"]

    wider = sweep(workspace, "train.lr=0.1,0.2")
    assert sorted(job["status"] for job in wider) == ["done", "kept"]
    best, other = (job["figures"]["acceptance_length"] for job in wider)
    assert best >= other > 1


@pytest.mark.slow
def test_jobs_over_one_dataset_rebuild_that_dataset_only(workspace: InstantBuild) -> None:
    """And what is built already, as with the temperature that HEAD has, is not built again."""
    jobs = sweep(workspace, "datasets.code.sampling.temperature=0.8,0.1")
    assert [job["status"] for job in jobs] == ["done", "done"]
    assert min(len(job["stages"]) for job in jobs) == 1
    runs = workspace.runs()
    assert runs.count("generate code") == 1
    assert not [run for run in runs if run.endswith(" tools")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train.lr=1,2"], "usage"),
        (["-m"], "usage"),
        (["-m", "train.lr=[1"], "train.lr=[1"),
        (["-m", "train.lrr=1,2"], "Did you mean train.lr?"),
        (["-m", "datasets.gone.sampling.seed=1,2"], "Known in datasets: ['code', 'tools']"),
        (["-m", "target=nothing,tiny_kimi"], "there is no conf/target/nothing.yaml"),
        (["-m", "hydra/launcher=nothing", "train.lr=1,2"], "hydra/launcher/nothing"),
    ],
)
def test_arguments_that_cannot_work_are_refused(workspace: InstantBuild, arguments: list[str], says: str) -> None:
    assert says in refused(workspace, *arguments)


@pytest.mark.slow
def test_files_that_git_does_not_know_are_refused(workspace: InstantBuild) -> None:
    workspace.write("conf/train/wide.yaml", "algorithm: eagle3\n")
    said = refused(workspace, "-m", "train.lr=1,2")
    assert "git add these first" in said
    assert "conf/train/wide.yaml" in said


@pytest.mark.slow
def test_changes_that_are_not_committed_are_refused(workspace: InstantBuild) -> None:
    workspace.replace("conf/train/default.yaml", "seed: 0", "seed: 1")
    said = refused(workspace, "-m", "train.lr=1,2")
    assert "commit these first" in said
    assert "conf/train/default.yaml" in said


@pytest.mark.slow
def test_copies_of_killed_experiments_are_removed_and_live_or_young_ones_are_not(
    workspace: InstantBuild, monkeypatch: pytest.MonkeyPatch
) -> None:

    from pipeline.project.experiments import remove_abandoned

    old = time.time() - 7200
    for name in ("tmp_dead", "tmp_live", "tmp_young"):
        (workspace.root / ".dvc/tmp/exps/standalone" / name / ".dvc").mkdir(parents=True)
    for name in ("tmp_dead", "tmp_live"):
        os.utime(workspace.root / ".dvc/tmp/exps/standalone" / name, (old, old))
    live = workspace.root / ".dvc/tmp/exps/standalone/tmp_live/.dvc"
    with subprocess.Popen([sys.executable, "-c", "input()"], cwd=live, stdin=subprocess.PIPE) as process:
        monkeypatch.chdir(workspace.root)
        removed = remove_abandoned()
        process.communicate(b"\n")
    assert [path.name for path in removed] == ["tmp_dead"]
