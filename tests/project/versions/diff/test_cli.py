"""`diff` on a real repository: revisions, data in the cache, in a remote, nowhere; nothing on the disk changes."""

import json
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.core.errors import ArtifactError, InputError
from pipeline.project.git import git
from pipeline.project.versions.diff.comparison import Comparison
from pipeline.project.versions.diff.data_store import DataStore, DataVersion
from pipeline.project.versions.diff.difference import DatasetDifference
from pipeline.project.versions.diff.version import Revision
from tests.instant_stages import InstantBuild

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def history(instant_build: InstantBuild, tmp_path_factory: pytest.TempPathFactory) -> InstantBuild:
    """Branch `change` edits a dataset, drops another, and is built; main moved on."""
    workspace = instant_build.copy(tmp_path_factory.mktemp("history") / "w")
    workspace.run("git", "checkout", "-q", "-b", "change")
    workspace.replace("data/code.jsonl", "question 0", "another question")
    with (workspace.root / "data/code.jsonl").open("a") as file:
        file.write('{"id":"code-new","messages":[{"role":"user","content":"new"}]}\n')
    workspace.replace("params.yaml", "- tools\n", "")
    workspace.replace("conf/train/default.yaml", "seed: 0", "seed: 7")
    workspace.run("dvc", "repro", "-q")
    workspace.run("git", "add", "-A")
    workspace.run("git", "commit", "-qm", "change")
    workspace.run("git", "checkout", "-q", "main")
    workspace.run("git", "commit", "-q", "--allow-empty", "-m", "main moves on")
    workspace.run("git", "checkout", "-q", "change")
    workspace.run("dvc", "checkout", "-q")
    return workspace


@pytest.fixture
def workspace(history: InstantBuild, tmp_path: Path) -> InstantBuild:
    return history.copy(tmp_path / "w")


def diff(workspace: InstantBuild, *arguments: str, by_hand: bool = False) -> dict[str, Any]:
    """What diff finds; by hand: as a person types it, in a process of its own."""
    before = snapshot(workspace)
    done = (workspace.python if by_hand else workspace.call)("diff", *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert snapshot(workspace) == before, "diff changed the working tree"
    return found


def snapshot(workspace: InstantBuild) -> dict[str, bytes]:
    found = {}
    for path in workspace.root.rglob("*"):
        name = path.relative_to(workspace.root).as_posix()
        if path.is_file() and not name.startswith((".git/", ".dvc/")) and "__pycache__" not in name:
            found[name] = path.read_bytes()
    return found


def of(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(dataset for dataset in found["datasets"] if dataset["name"] == name)


def test_a_branch_against_where_it_left_main(workspace: InstantBuild) -> None:
    found = diff(workspace, "main...HEAD", by_hand=True)
    code, tools = of(found, "code"), of(found, "tools")
    assert (code["rows"]["added"], code["rows"]["removed"], code["rows"]["changed"], code["rows"]["unchanged"]) == (
        1,
        0,
        1,
        5,
    )
    assert code["rows"]["ids"]["added"] == ["code-new"]
    assert code["rows"]["ids"]["changed"] == ["code-0"]
    assert [example["id"] for example in code["examples"]] == ["code-0"]
    assert code["headline"]["cost_usd"] == [0.006, 0.007]
    assert (tools["presence"], tools["rows"]["removed"]) == ("removed", 6)
    changed = {change["path"]: (change["old"], change["new"]) for change in found["config"]}
    assert changed["train.seed"] == (0, 7)
    assert changed["names"] == (["code", "tools"], ["code"])
    assert "build/drafter/eval.json" in found["drafter"]
    assert found["rerun"] == {}


def test_a_build_just_committed_has_no_difference(workspace: InstantBuild) -> None:
    """The clock's figures, which git does not keep, are none either."""
    found = diff(workspace)
    assert found["config"] == []
    assert found["drafter"] == {}
    (code,) = found["datasets"]
    assert (code["presence"], code["metrics"]) == ("both", {})
    assert (code["rows"]["added"], code["rows"]["removed"], code["rows"]["changed"], code["rows"]["unchanged"]) == (
        0,
        0,
        0,
        7,
    )


def test_the_working_tree_is_compared_as_it_would_compose_and_the_stages_to_come_are_named(
    workspace: InstantBuild,
) -> None:
    workspace.replace("conf/audit/default.yaml", "min_accepted: 20", "min_accepted: 21")
    found = diff(workspace)
    assert {change["path"] for change in found["config"]} == {"audit.gate.min_accepted"}
    assert list(found["rerun"]) == ["audit@code"]
    assert found["followers"] == ["gate@code", "extract@code", "train", "evaluate", "export"]


def test_data_that_only_the_remote_has_is_brought_also_when_the_revision_knows_no_remote(
    workspace: InstantBuild, tmp_path: Path
) -> None:
    workspace.run("dvc", "remote", "add", "-d", "storage", str(tmp_path / "storage"))
    locked = diff(workspace, "main...HEAD")
    shutil.move(workspace.root / ".dvc/cache", tmp_path / "storage")
    assert of(diff(workspace, "main...HEAD"), "code")["rows"] == of(locked, "code")["rows"]


def test_data_that_is_nowhere_is_named_and_the_rest_compared(workspace: InstantBuild) -> None:
    shutil.rmtree(workspace.root / ".dvc/cache")
    found = diff(workspace, "main...HEAD")
    assert of(found, "code")["rows"] is None
    assert "build/code/tokens.parquet: its version" in of(found, "code")["notes"][0]
    assert "no default remote" in of(found, "code")["notes"][0]
    assert of(found, "code")["headline"]["cost_usd"] == [0.006, 0.007]
    assert found["config"]
    done = workspace.call("diff", "main...HEAD", "--need-data")
    assert done.returncode == 2
    assert "its version" in done.stderr


def test_a_remote_that_lacks_it_is_named(workspace: InstantBuild, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    workspace.run("dvc", "remote", "add", "-d", "storage", str(tmp_path / "empty"))
    shutil.rmtree(workspace.root / ".dvc/cache")
    notes = of(diff(workspace, "main...HEAD"), "code")["notes"]
    assert "tokens.parquet: its version" in notes[0]


class _NoCredentials(Exception):
    """Like those of the storages' own libraries, which share no root."""


def test_a_remote_whose_library_gives_up_is_named(tmp_path: Path) -> None:
    def pull(_: Any) -> None:
        raise _NoCredentials("Unable to locate credentials\nmore of it")

    store = DataStore()
    store._repo = SimpleNamespace(
        cache=SimpleNamespace(local=SimpleNamespace(oid_to_path=lambda md5: tmp_path / md5)),
        cloud=SimpleNamespace(pull=pull),
    )
    with pytest.raises(
        ArtifactError,
        match=r"build/code/tokens.parquet: its version abc .* the remote cannot give it: Unable to locate credentials$",
    ):
        store.find("build/code/tokens.parquet", "abc")


def test_a_disk_without_room_for_dvcs_own_notes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("dvc.repo.Repo", full)
    with pytest.raises(
        ArtifactError,
        match=r"build/a/tokens\.parquet: DVC cannot be asked, .*site_cache_dir.*: database or disk is full",
    ):
        DataStore().find("build/a/tokens.parquet", "0" * 32)


def test_rows_that_cannot_be_read_are_named_as_people_know_them(tmp_path: Path) -> None:
    """Where the cache keeps them says nothing; a version before a change of the schema is such a file."""
    (tmp_path / "ab12").write_bytes(b"PAR1")
    old, new = (
        SimpleNamespace(label=label, data=lambda _: DataVersion(tmp_path / "ab12", None)) for label in ("v1", "HEAD")
    )
    new.data = lambda _: DataVersion(tmp_path / "ab13", None)
    dataset = DatasetDifference("code", "both")
    Comparison(old, new, examples=1)._dataset(dataset, {}, {})
    assert dataset.notes[0].startswith("build/code/tokens.parquet of v1: not a whole Parquet file")
    assert str(tmp_path) not in dataset.notes[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "no revision 'nowhere' in this repository"),
        (["main", "nowhere"], "no revision 'nowhere'"),
        (["main...nowhere"], "no revision 'nowhere'"),
        (["--", "-x"], "no revision '-x'"),
        (["a", "b", "c"], "the versions to compare are REV, REV REV2"),
        (["a..b", "c"], "the versions to compare are REV, REV REV2"),
        (["--examples", "-3"], "must be 0 or more; found -3"),
        (["--limit", "0"], "must be 1000 or more; found 0"),
    ],
)
def test_a_revision_that_does_not_exist_is_named(history: InstantBuild, arguments: list[str], says: str) -> None:
    done = history.call("diff", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_lock_or_config_is_named(workspace: InstantBuild) -> None:
    workspace.write("dvc.lock", "stages: [")
    done = workspace.call("diff")
    assert done.returncode == 2
    assert "dvc.lock:2: not YAML" in done.stderr
    workspace.run("git", "checkout", "-q", "dvc.lock")
    workspace.replace("conf/train/default.yaml", "algorithm: eagle3", "algorithm: eagle9")
    done = workspace.call("diff")
    assert done.returncode == 2
    assert "train.algorithm" in done.stderr


def test_a_commit_before_the_first_build_is_named(workspace: InstantBuild) -> None:
    first = workspace.run("git", "rev-list", "--max-parents=0", "HEAD").stdout.strip()
    workspace.run("git", "checkout", "-q", "--orphan", "empty")
    workspace.run("git", "rm", "-rfq", "--cached", ".")
    workspace.run("git", "commit", "-q", "--allow-empty", "-m", "empty")
    done = workspace.call("diff", "empty", first)
    assert done.returncode == 2
    assert "has no build/config.json" in done.stderr
    done = workspace.call("diff", "empty...main")
    assert done.returncode == 2
    assert "empty and main have no commit in common" in done.stderr
    shutil.rmtree(workspace.root / ".git")
    done = workspace.call("diff")
    assert done.returncode == 2
    assert "not in a git repository" in done.stderr


@pytest.mark.parametrize("config", ["[]", '{"audit": {}}', '{"names": "code"}', '{"names": [7]}', "{"])
def test_a_commit_whose_config_another_program_wrote_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    (tmp_path / "build/config.json").write_text(config)
    git("init", "-q")
    git("add", "-A")
    git("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "odd")
    with pytest.raises(InputError, match=r"HEAD.*(names|not JSON)"):
        Revision("HEAD", DataStore())


def test_all_formats_are_written_to_a_file(workspace: InstantBuild) -> None:
    for name, start in (("md", "<!-- aerie"), ("html", "<!doctype html>"), ("json", "{")):
        assert workspace.call("diff", "main...HEAD", "--format", name, "--out", f"out.{name}").returncode == 0
        assert (workspace.root / f"out.{name}").read_text().startswith(start)
