"""The folder of the ledger."""

import subprocess
from pathlib import Path

import pytest

from pipeline.core.home import store_folder


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AERIE_STORE", "DVC_ROOT"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "clone"
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    monkeypatch.chdir(folder)
    return folder


def test_in_the_git_folder_of_the_clone(clone: Path) -> None:
    assert store_folder() == clone / ".git" / "aerie"


def test_shared_by_its_work_trees(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(clone, "worktree", "add", "-q", str(tmp_path / "tree"))
    monkeypatch.chdir(tmp_path / "tree")
    assert store_folder() == clone / ".git" / "aerie"


def test_shared_by_an_experiments_copy(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    git(copy, "init", "-q")
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(clone))
    assert store_folder() == clone / ".git" / "aerie"


def test_a_hooks_environment_names_no_other_repository(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert store_folder() == clone / ".git" / "aerie"


def test_beside_the_work_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AERIE_STORE", raising=False)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert store_folder() == tmp_path / ".aerie"


def test_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIE_STORE", str(tmp_path / "mine"))
    assert store_folder() == tmp_path / "mine"
