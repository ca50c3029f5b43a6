"""`doctor`: it finds what would stop a build, says what to do, never shows a key, and changes nothing."""

import re
from pathlib import Path

import pytest

from pipeline.project.compose import build_config
from pipeline.project.diagnosis import Diagnosis, filesystem_of, provider
from pipeline.project.params import read_params
from tests.instant_stages import InstantBuild

MOUNTS = """overlay / overlay rw 0 0
/dev/sda1 /home ext4 rw 0 0
server:/export /home/shared nfs4 rw 0 0
//server/x /mnt/with\\040space cifs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/.git", "ext4"),
        ("/home/shared/clone/.git", "nfs4"),
        ("/home/sharedness", "ext4"),
        ("/srv/x", "overlay"),
        ("/mnt/with space/x", "cifs"),
    ],
)
def test_the_deepest_mount_tells_the_file_system(path: str, kind: str) -> None:
    assert filesystem_of(Path(path), MOUNTS) == kind


@pytest.fixture
def workspace(instant_build: InstantBuild, tmp_path: Path) -> InstantBuild:
    return instant_build.copy(tmp_path / "w")


def lines(workspace: InstantBuild, *, code: int, by_hand: bool = False) -> dict[str, tuple[str, str]]:
    """What doctor finds, by what it is about; by hand: as a person types it, in a process of its own."""
    before = workspace.run("git", "status", "--porcelain").stdout
    done = workspace.python("doctor", check=False) if by_hand else workspace.call("doctor")
    assert done.returncode == code, done.stdout + done.stderr
    assert workspace.run("git", "status", "--porcelain").stdout == before
    found = {}
    for part in re.split(r"^(?=ok|warn|fail)", done.stdout, flags=re.MULTILINE):
        level, _, rest = part.partition(" ")
        about, _, said = rest.strip().partition(": ")
        found[about] = (level, said)
    return found


@pytest.mark.slow
def test_a_built_clone_is_healthy_and_what_it_lacks_is_named(workspace: InstantBuild) -> None:
    found = lines(workspace, code=0, by_hand=True)
    assert found["versions"][0] == "ok"
    assert found["versions"][1].startswith("build/ and dvc.lock agree with conf/ and the code")
    assert found["tokenizer"][0] == "ok"
    assert "make setup" in found["merge driver"][1]
    assert "dvc remote add" in found["remote"][1]
    workspace.run("make", "drivers")
    workspace.run("dvc", "remote", "add", "-d", "s", "/tmp/s", "-q")
    workspace.replace("conf/train/default.yaml", "seed: 0", "seed: 1")
    found = lines(workspace, code=0)
    assert found["merge driver"][0] == found["remote"][0] == "ok"
    assert found["versions"][0] == "warn"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "about", "says"),
    [
        ("conf/train/default.yaml", "algorithm: eagle3", "algorithm: eagle9", "config", "train.algorithm"),
        ("conf/target/kimi_k25.yaml", '"<|im_end|>": 163586', '"<|im_end|>": 163533', "tokenizer", "chas"),
        ("conf/train/default.yaml", "device: cpu", "device: cuda", "device of train", "sees no GPU here"),
        ("params.yaml", "overrides: []", "overrides: [provider=openrouter]", "key", "OPENROUTER_API_KEY is not set"),
        ("dvc.lock", "schema: '2.0'", "schema: [", "dvc.lock", "not YAML"),
    ],
)
def test_what_would_stop_a_build_is_found(
    workspace: InstantBuild, monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str, about: str, says: str
) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    workspace.replace(file, old, new)
    level, said = lines(workspace, code=2)[about]
    assert level == "fail"
    assert says in said


def test_a_key_is_never_shown_and_an_open_budget_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-or-v1-SECRETSECRETSECRET")
    params = read_params()
    config = build_config(params._replace(overrides=["provider=openrouter", "budget.usd=null"]))
    found = list(provider(config))
    assert [finding.level for finding in found] == ["ok", "warn"]
    assert Diagnosis("ok", "key", "OPENROUTER_API_KEY is set") in found
    assert "SECRET" not in repr(found)
