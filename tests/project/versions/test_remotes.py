"""Sharing a build: what one clone pushed, another pulls, and rebuilds nothing; with a folder and with an S3 server."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.instant_stages import InstantBuild

pytestmark = pytest.mark.slow


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 server on loopback with one bucket; its address."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "testing"),
        ("AWS_SECRET_ACCESS_KEY", "testing"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="data")
    yield f"http://{host}:{port}"
    server.stop()


def share(workspace: InstantBuild) -> None:
    """Commit the remote before the data, then push."""
    workspace.run("git", "commit", "-qam", "Share data through a remote")
    workspace.run("dvc", "push", "-q")


def colleague(workspace: InstantBuild, to: Path) -> InstantBuild:
    """Clone, as someone else does on another machine: no cache, nothing built."""
    workspace.run("git", "clone", "-q", str(workspace.root), str(to))
    return InstantBuild(to)


def check_pulled(clone: InstantBuild, workspace: InstantBuild) -> None:
    """Nothing runs in the clone; then one more prompt reruns its dataset, and no other."""
    clone.run("dvc", "pull", "-q")
    assert clone.repro() == set()
    assert clone.runs() == []
    for path in ("build/code/tokens.parquet", "build/drafter/export/file"):
        assert (clone.root / path).read_bytes() == (workspace.root / path).read_bytes()
    with (clone.root / "data/code.jsonl").open("a") as file:
        file.write('{"id":"code-new","messages":[{"role":"user","content":"new"}]}\n')
    assert "generate@code" in clone.repro("generate@code", "generate@tools")
    assert {run for run in clone.runs() if run.startswith("generate")} == {"generate code"}


def test_a_folder_carries_a_build_to_another_clone(instant_build: InstantBuild, tmp_path: Path) -> None:
    workspace = instant_build.copy(tmp_path / "w")
    workspace.run("dvc", "remote", "add", "-d", "storage", str(tmp_path / "storage"))
    share(workspace)
    check_pulled(colleague(workspace, tmp_path / "clone"), workspace)


def test_s3_carries_a_build_and_gives_diff_the_rows_that_the_cache_lacks(
    instant_build: InstantBuild, tmp_path: Path, storage: str
) -> None:
    workspace = instant_build.copy(tmp_path / "w")
    workspace.run("dvc", "remote", "add", "-d", "storage", "s3://data/aerie")
    workspace.run("dvc", "remote", "modify", "storage", "endpointurl", storage)
    share(workspace)
    clone = colleague(workspace, tmp_path / "clone")
    found = clone.call("diff", "HEAD~1", "HEAD", "--need-data")
    assert "| <code>code</code> | 6 | 0 | 0 | 0 |" in found.stdout
    check_pulled(clone, workspace)


def test_without_the_data_a_clone_says_what_is_missing_and_keeps_what_git_has(
    instant_build: InstantBuild, tmp_path: Path
) -> None:
    clone = colleague(instant_build, tmp_path / "clone")
    shutil.rmtree(clone.root / ".dvc/cache", ignore_errors=True)
    assert clone.call("verify").returncode == 0
    status = clone.call("diff", "HEAD", "HEAD")
    assert "no default remote" in status.stdout
    assert clone.runs() == []
