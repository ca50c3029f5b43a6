"""The merge driver for dvc.lock: rules stage by stage, DVC's own way of writing, and real merges of real branches."""

import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError
from pipeline.project.versions import merge_driver
from pipeline.project.versions.lockfile import raw_stages
from pipeline.project.versions.merge_driver import merge, render
from tests.instant_stages import InstantBuild
from tests.workspace import ROOT

VALUES = [None, {"cmd": "a"}, {"cmd": "b"}, {"cmd": "c"}]


def put(value: Any) -> dict[str, Any]:
    return {} if value is None else {"stage": value}


@pytest.mark.parametrize(("base", "ours", "theirs"), list(itertools.product(VALUES, repeat=3)))
def test_the_side_that_changed_wins_and_both_sides_lose(base: Any, ours: Any, theirs: Any) -> None:
    merged, dropped = merge(put(base), put(ours), put(theirs))
    if ours == theirs:
        assert (merged, dropped) == (put(ours), [])
    elif ours == base:
        assert (merged, dropped) == (put(theirs), [])
    elif theirs == base:
        assert (merged, dropped) == (put(ours), [])
    else:
        assert (merged, dropped) == ({}, ["stage"])


locks = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3).map(lambda n: {"cmd": str(n)}))


@settings(deadline=None)
@given(locks, locks, locks)
def test_which_side_is_ours_decides_nothing(base: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    one, other = merge(base, ours, theirs), merge(base, theirs, ours)
    assert one[0] == other[0]
    assert sorted(one[1]) == sorted(other[1])


@pytest.mark.slow
def test_an_unchanged_lock_is_written_as_dvc_wrote_it(instant_build: InstantBuild) -> None:
    content = (instant_build.root / "dvc.lock").read_bytes()
    assert render(raw_stages(content, "dvc.lock")) == content


def test_a_broken_side_leaves_ours_alone_and_is_named(tmp_path: Path) -> None:
    for name, text in (
        ("base", "schema: '2.0'\nstages: {}\n"),
        ("ours", "schema: '2.0'\nstages: {}\n"),
        ("theirs", "<<<<<<< x\n"),
    ):
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=r"dvc\.lock \(theirs\): holds git's conflict markers"):
        merge_driver.main([str(tmp_path / name) for name in ("base", "ours", "theirs")])
    assert (tmp_path / "ours").read_text() == "schema: '2.0'\nstages: {}\n"


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="usage"):
        merge_driver.main(["a", "b"])


def set_up_drivers(workspace: InstantBuild) -> None:
    """Run the recipe of `make drivers`, with this interpreter in place of .venv's."""
    workspace.write(".venv/bin/python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (workspace.root / ".venv/bin/python").chmod(0o755)
    workspace.run("make", "drivers")


def branch(workspace: InstantBuild, name: str, *edits: tuple[str, str, str]) -> None:
    """Commit a branch off main with these edits, built."""
    workspace.run("git", "checkout", "-q", "-b", name, "main")
    for edit in edits:
        workspace.replace(*edit)
    workspace.run("dvc", "repro", "-q")
    workspace.run("git", "add", "-A")
    workspace.run("git", "commit", "-qm", name)


@pytest.fixture(scope="module")
def forked(instant_build: InstantBuild, tmp_path_factory: pytest.TempPathFactory) -> InstantBuild:
    """Branch `one` off main, with another temperature for code."""
    workspace = instant_build.copy(tmp_path_factory.mktemp("forked") / "w")
    branch(workspace, "one", ("conf/dataset/code.yaml", "temperature: 0.8", "temperature: 0.9"))
    return workspace


@pytest.fixture
def workspace(forked: InstantBuild, tmp_path: Path) -> InstantBuild:
    workspace = forked.copy(tmp_path / "w")
    set_up_drivers(workspace)
    return workspace


@pytest.mark.slow
def test_branches_that_built_different_datasets_merge_and_only_what_they_share_runs(workspace: InstantBuild) -> None:
    branch(workspace, "two", ("conf/dataset/tools.yaml", "temperature: 0.8", "temperature: 0.7"))
    workspace.runs()
    merged = workspace.run("git", "merge", "-m", "both", "one")
    dropped = merged.stderr.partition("dropped: ")[2].partition(";")[0].split(", ")
    assert dropped == ["compose", "train", "evaluate", "export"]
    assert workspace.call("verify").returncode == 2
    workspace.run("dvc", "checkout", "-q", check=False)  # brings the data that the merged entries speak of
    assert workspace.repro() == {"compose", "train", "evaluate", "export"}
    assert {run.split()[0] for run in workspace.runs()} == {"train", "evaluate", "export"}, "no data was made again"
    assert workspace.call("verify").returncode == 0


@pytest.mark.slow
def test_a_stage_that_both_branches_changed_is_built_for_the_merged_config(workspace: InstantBuild) -> None:
    branch(workspace, "two", ("conf/dataset/code.yaml", "usd: 5", "usd: 6"))
    workspace.runs()
    workspace.run("git", "merge", "-m", "both", "one")
    said = workspace.call("verify")
    assert said.returncode == 2
    assert "generate@code" in said.stderr
    workspace.run("dvc", "checkout", "-q", check=False)
    workspace.run("dvc", "repro", "-q")
    assert "generate code" in workspace.runs()
    assert workspace.call("verify").returncode == 0


@pytest.mark.slow
def test_setting_up_outside_git_does_not_fail(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    done = subprocess.run(
        ["make", "drivers"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
    )
    assert done.returncode == 0
    assert "not a git repository" in done.stdout


def test_the_driver_finds_the_package_where_the_build_is_a_subfolder(tmp_path: Path) -> None:
    """Git runs it at the top of the work tree."""
    top, build = tmp_path / "a b", tmp_path / "a b" / "build of drafter"
    (build / ".venv/bin").mkdir(parents=True)
    (build / ".venv/bin/python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (build / ".venv/bin/python").chmod(0o755)
    module = build / "pipeline/project/versions/merge_driver.py"
    module.parent.mkdir(parents=True)
    module.write_text("import sys\nopen(sys.argv[2], 'w').write(' '.join(sys.argv[1:]))\n")
    shutil.copy(ROOT / "Makefile", build)
    for command in (["git", "init", "-q", str(top)], ["make", "-C", str(build), "drivers"]):
        subprocess.run(command, check=True, capture_output=True)
    driver = subprocess.run(
        ["git", "config", "merge.aerie-lock.driver"], cwd=top, check=True, capture_output=True, text=True
    ).stdout.strip()
    for sign, name in {"%O": "base", "%A": "ours", "%B": "theirs"}.items():
        driver = driver.replace(sign, name)
    subprocess.run(["sh", "-c", driver], cwd=top, check=True, capture_output=True)
    assert (top / "ours").read_text() == "base ours theirs", "this package ran, and no other"
