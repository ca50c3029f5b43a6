"""The pull-request workflow: what it may do, and its own scripts run for real on a branch."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.project.versions.diff.markdown_page import LIMIT, MARK
from tests.conftest import ROOT
from tests.instant_stages import InstantBuild

WORKFLOW: dict[str, Any] = YAML(typ="safe").load((ROOT / ".github/workflows/dataset-diff.yml").read_text())
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["diff"]["steps"]


def script(name: str) -> str:
    return next(str(step["run"]) for step in STEPS if step.get("name") == name)


def test_it_runs_on_forks_with_their_own_rights_and_comments_only_where_it_may() -> None:
    assert set(WORKFLOW["on"]) == {"pull_request"}, "pull_request_target would run foreign code with our secrets"
    assert WORKFLOW["permissions"] == {"contents": "read", "pull-requests": "write"}
    comment = next(step for step in STEPS if step.get("name") == "comment")
    assert comment["if"] == "github.event.pull_request.head.repo.full_name == github.repository"


def test_the_comment_is_edited_or_posted_by_gh_with_the_workflow_s_own_token(tmp_path: Path) -> None:
    step = next(step for step in STEPS if step.get("name") == "comment")
    assert step["env"]["GH_TOKEN"] == "${{ github.token }}"
    (tmp_path / "gh").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > arguments\n')
    (tmp_path / "gh").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NUMBER": "7", "GITHUB_REPOSITORY": "owner/name"}
    subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, check=True)
    wanted = "pr comment 7 --repo owner/name --edit-last --create-if-none --body-file comment.md"
    assert (tmp_path / "arguments").read_text().split() == wanted.split()


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_foreign_actions_are_pinned_to_a_commit(path: Path) -> None:
    """A tag can be moved to other code; a hash cannot."""
    used = re.findall(r"uses: (\S+)", path.read_text())
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name)] == []


def test_no_script_takes_what_a_stranger_wrote_as_code() -> None:
    """`${{ }}` inside `run` is pasted into the shell: titles and branch names must come through the environment."""
    assert not [step["name"] for step in STEPS if "${{" in step.get("run", "")]


@pytest.mark.slow
@pytest.mark.parametrize("stale", [False, True])
def test_its_scripts_compare_a_branch_and_its_last_step_gives_verify_s_answer(
    instant_build: InstantBuild, tmp_path: Path, *, stale: bool
) -> None:
    workspace = instant_build.copy(tmp_path / "w")
    base = workspace.run("git", "rev-parse", "HEAD").stdout.strip()
    workspace.replace("conf/dataset/code.yaml", "temperature: 0.8", "temperature: 0.9")
    if not stale:
        workspace.run("dvc", "repro", "-q")
    workspace.run("git", "commit", "-qam", "change")
    settings = {"BASE": base, "GITHUB_ENV": str(tmp_path / "env"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    for name in ("verify", "compare"):
        given = {**settings, **dict(line.split("=", 1) for line in _lines(tmp_path / "env"))}
        workspace.run("env", *(f"{key}={value}" for key, value in given.items()), "bash", "-e", "-c", script(name))
    assert workspace.run(
        "env", *_lines(tmp_path / "env"), "bash", "-e", "-c", script("verdict"), check=False
    ).returncode == (2 if stale else 0)
    comment = (workspace.root / "comment.md").read_text()
    assert comment == (tmp_path / "summary").read_text()
    assert len(comment) <= LIMIT == 65_536
    assert comment.startswith(MARK)
    assert ("❌ verify" if stale else "✅ verify") in comment
    assert ("datasets.code.sampling.temperature" in comment.partition("verify")[2]) is stale
    found = json.loads((workspace.root / "dataset-diff.json").read_text())
    rows = {dataset["name"]: dataset["rows"] for dataset in found["datasets"]}
    assert (rows["code"]["changed"], rows["tools"]["changed"], rows["tools"]["unchanged"]) == (0 if stale else 6, 0, 6)
    assert (workspace.root / "dataset-diff.html").read_text().startswith("<!doctype html>")


def test_what_cannot_be_compared_is_said_in_the_comment_and_fails_the_run(tmp_path: Path) -> None:
    """A comment of an earlier push would else stand there as if it still held."""
    (tmp_path / "python").write_text("#!/bin/sh\necho 'error: dvc.lock in HEAD: holds conflict markers' >&2\nexit 2\n")
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "verify.txt").write_text("x" * 3999 + "é is cut in half by a limit in bytes")
    settings = {
        "BASE": "a",
        "VERIFIED": "0",
        "GITHUB_ENV": "env",
        "GITHUB_STEP_SUMMARY": "summary",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }

    def run(name: str) -> int:
        given = {**settings, **dict(line.split("=", 1) for line in _lines(tmp_path / "env"))}
        return subprocess.run(
            ["bash", "-e", "-c", script(name)], cwd=tmp_path, env=given, capture_output=True, check=False
        ).returncode

    assert run("compare") == 0, "the comment is still to be written"
    said = (tmp_path / "comment.md").read_text()
    assert said.startswith(MARK)
    assert len(said) <= LIMIT
    assert "## Data: not compared\n\n    error: dvc.lock in HEAD: holds conflict markers\n" in said
    assert "### ✅ verify" in said
    assert run("verdict") == 2


def _lines(path: Path) -> list[str]:
    return path.read_text().split(os.linesep)[:-1] if path.exists() else []
