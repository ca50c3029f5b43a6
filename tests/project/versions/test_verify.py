"""`verify`: whatever git holds that does not agree with conf/ and the code is named, with the command that mends it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.instant_stages import InstantBuild

pytestmark = pytest.mark.slow


@pytest.fixture
def workspace(instant_build: InstantBuild, tmp_path: Path) -> InstantBuild:
    return instant_build.copy(tmp_path / "w")


def refusal(workspace: InstantBuild, *, by_hand: bool = False) -> str:
    """What verify says; by hand: as a person types it, in a process of its own."""
    before = workspace.run("git", "status", "--porcelain").stdout
    done = workspace.python("verify", check=False) if by_hand else workspace.call("verify")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert workspace.run("git", "status", "--porcelain").stdout == before, "verify wrote something"
    return done.stderr


def test_a_built_and_committed_repository_agrees(workspace: InstantBuild) -> None:
    assert "dvc.lock agrees (19 stages)" in workspace.python("verify").stdout


def test_nothing_built_yet_agrees(workspace: InstantBuild) -> None:
    (workspace.root / "dvc.lock").unlink()
    assert "nothing built yet" in workspace.call("verify").stdout


def test_comments_and_order_of_keys_disturb_nothing(workspace: InstantBuild) -> None:
    workspace.replace("conf/dataset/code.yaml", "prompts:", "# a comment\nprompts:")
    workspace.replace(
        "conf/dataset/tools.yaml", "  temperature: 0.8\n  top_p: 1.0\n", "  top_p: 1.0\n\n  temperature: 0.8\n"
    )
    workspace.replace(
        "pipeline/stages/audit/stage.py", '"""An instant stage."""', '"""Another text."""  # and a comment'
    )
    assert workspace.call("verify").returncode == 0


def test_a_config_that_was_not_composed_is_shown_by_dotted_path_with_both_commands(workspace: InstantBuild) -> None:
    workspace.replace("conf/dataset/code.yaml", "temperature: 0.8", "temperature: 0.9")
    said = refusal(workspace, by_hand=True)
    assert "build/config.json (in the file -> composed):" in said
    assert "datasets.code.sampling.temperature: 0.8 -> 0.9" in said
    assert "python -m pipeline compose && git add build/config.json" in said
    assert "generate@code:" in said
    assert "dvc repro" in said


def test_a_composed_config_that_was_not_built_names_the_stages_and_what_follows(workspace: InstantBuild) -> None:
    workspace.replace("conf/audit/default.yaml", "min_accepted: 20", "min_accepted: 21")
    workspace.call("compose")
    said = refusal(workspace)
    assert "build/config.json (in" not in said
    for name in ("code", "tools"):
        assert f"audit@{name}:\n" in said
    assert said.count("audit.gate.min_accepted: 20 -> 21") == 2
    assert "what follows may change too: gate@code" in said
    assert "generate@" not in said
    assert "dvc repro && git add dvc.lock build (" in said, (
        "a new dataset's summaries are files that git does not know yet"
    )


def test_changed_code_names_the_stages_that_run_it(workspace: InstantBuild) -> None:
    workspace.replace("pipeline/stages/extract/stage.py", "def run(", "PLANTED = 1\n\n\ndef run(")
    said = refusal(workspace)
    assert "extract.code: " in said
    assert "extract@code:\n" in said
    assert "its code or a library changed" in said


def test_an_edit_that_is_not_composed_yet_is_told_from_a_commit_that_was_made_without_composing(
    workspace: InstantBuild,
) -> None:
    workspace.replace("conf/dataset/code.yaml", "temperature: 0.8", "temperature: 0.9")
    said = refusal(workspace)
    assert "edited since the last commit, and not composed yet: conf/dataset/code.yaml" in said
    workspace.run("git", "commit", "-qam", "an edit without composing")
    said = refusal(workspace)
    assert "the last commit itself holds stale files: it was made without composing" in said
    assert "not composed yet" not in said
    workspace.call("compose")
    workspace.run("git", "commit", "-qam", "composed")
    assert "holds stale files" not in refusal(workspace)
    workspace.write("build/config.yaml", "{}")
    assert "not as in the last commit: build/config.yaml" in refusal(workspace)


def removed(path: str) -> Callable[[InstantBuild], None]:
    return lambda workspace: (workspace.root / path).unlink()


def edited(path: str, key: str) -> Callable[[InstantBuild], None]:
    def edit(workspace: InstantBuild) -> None:
        document = json.loads((workspace.root / path).read_text())
        document[key] = "edited by hand"
        (workspace.root / path).write_text(json.dumps(document))

    return edit


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (removed("build/config.json"), "build/config.json is missing"),
        (removed("build/code.json"), "build/code.json is missing"),
        (edited("build/config.json", "names"), "names: 'edited by hand' -> ['code', 'tools']"),
        (lambda w: w.write("build/config.json", "{"), "build/config.json is not JSON"),
        (lambda w: w.write("build/config.yaml", "{}"), "build/config.yaml is not what conf/ composes to"),
        (
            edited("build/code/audit/summary.json", "digest"),
            "build/code/audit/summary.json is not the file that it wrote",
        ),
        (removed("build/extracted/code.json"), "build/extracted/code.json is missing"),
        (lambda w: w.write("dvc.lock", "<<<<<<< HEAD\n"), "conflict markers"),
        (lambda w: w.write("dvc.lock", "schema: '2.0'\nstages: {}\n"), "train:\n"),
        (lambda w: w.replace("dvc.lock", "temperature: 0.8", "temperature: 0.1"), "sampling.temperature: 0.1 -> 0.8"),
        (
            lambda w: w.replace("dvc.lock", "cmd: python -m pipeline train", "cmd: python -m pipeline learn"),
            "its command is 'python -m pipeline train' now",
        ),
        (
            lambda w: w.replace("dvc.lock", "        datasets.code.send_tools: false\n", ""),
            "datasets.code.send_tools: nothing -> False",
        ),
        (lambda w: w.replace("conf/train/default.yaml", "algorithm: eagle3", "algorithm: eagle9"), "train.algorithm"),
        (lambda w: w.replace("params.yaml", "- code\n", ""), "names: ['code', 'tools'] -> ['tools']"),
        (lambda w: w.replace("data/code.jsonl", "question 0", "question zero"), "inputs.code"),
    ],
)
def test_every_disagreement_is_named(
    workspace: InstantBuild, change: Callable[[InstantBuild], None], says: str
) -> None:
    change(workspace)
    assert says in refusal(workspace)


def test_a_dependency_that_left_the_table_is_noticed(workspace: InstantBuild) -> None:
    """DVC itself does not count a removed dependency as a change."""
    lock = (workspace.root / "dvc.lock").read_text()
    start = lock.index("  gate@code:")
    at = lock.index("    deps:\n", start) + len("    deps:\n")
    extra = (
        "    - path: build/code/old.json\n      hash: md5\n      md5: 0cc175b9c0f1b6a831c399e269772661\n      size: 1\n"
    )
    (workspace.root / "dvc.lock").write_text(lock[:at] + extra + lock[at:])
    assert "gate@code:\n      reads build/code/old.json no longer" in refusal(workspace)


def test_half_of_a_merged_lock_is_noticed(workspace: InstantBuild) -> None:
    """Their entry of a stage, our entry of the one it reads from."""
    theirs = rebuilt_by_hand(workspace)
    ours = (workspace.root / "dvc.lock").read_text()
    mixed = ours.replace(entry(ours, "generate@code"), entry(theirs, "generate@code"))
    (workspace.root / "dvc.lock").write_text(mixed)
    said = refusal(workspace)
    assert "reconstruct@code:" in said
    assert "build/code/responses.jsonl changed since it ran" in said


def rebuilt_by_hand(workspace: InstantBuild) -> str:
    """Lock of a build with another temperature; what git holds of the workspace is put back."""
    workspace.replace("conf/dataset/code.yaml", "temperature: 0.8", "temperature: 0.9")
    workspace.run("dvc", "repro", "-q", "generate@code")
    lock = (workspace.root / "dvc.lock").read_text()
    workspace.run("git", "checkout", "-q", ".")
    return lock


def entry(lock: str, name: str) -> str:
    start = lock.index(f"  {name}:\n")
    following = [lock.find(f"\n  {c}", start + 1) for c in "abcdefghijklmnopqrstuvwxyz"]
    return lock[start : min([at for at in following if at > 0], default=len(lock))]
