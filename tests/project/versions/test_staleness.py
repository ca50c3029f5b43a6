"""Staleness from documents alone: the answers that DVC gives, and real runs that do what was foretold."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.project.versions.lockfile import read_lock
from pipeline.project.versions.staleness import affected, changes, followers, instances, stale
from tests.instant_stages import InstantBuild

NAMES = ["code", "tools"]


def test_changed_leaves_have_dotted_paths_and_types_count() -> None:
    old = {"a": {"b": 1, "gone": None}, "c": [1], "same": 0}
    new = {"a": {"b": 1.0, "new": {}}, "c": [2], "same": 0}
    assert list(changes(old, new)) == [("a.b", 1, 1.0), ("a.gone", None, ...), ("a.new", ..., {}), ("c", [1], [2])]


def test_what_follows_is_found_through_every_kind_of_read() -> None:
    assert followers(["gate@code"], NAMES) == ["extract@code", "train", "evaluate", "export"]
    assert followers(["prompts@tools"], NAMES)[:2] == ["generate@tools", "reconstruct@tools"]
    assert followers(["export"], NAMES) == []
    assert followers([], NAMES) == []
    everything = {label for label, _, _ in instances(NAMES)}
    assert {
        *followers(["target", *(f"prompts@{name}" for name in NAMES)], NAMES),
        "target",
        "prompts@code",
        "prompts@tools",
    } == everything


def test_a_new_dataset_and_a_changed_value_are_affected() -> None:
    old = {"names": ["code"], "train": {"lr": 1}, "datasets": {"code": {}}}
    new = {"names": NAMES, "train": {"lr": 2}, "datasets": {"code": {}, "tools": {}}}
    found = affected((old, {}), (new, {}))
    assert found["prompts@tools"] == ["is new"]
    assert sorted(found["train"]) == ["names: ['code'] -> ['code', 'tools']", "train.lr: 1 -> 2"]
    assert not [label for label in found if label.endswith("@code")]


EDITS: list[tuple[str, Callable[[InstantBuild], None], str]] = [
    ("a sampling value", lambda w: w.replace("conf/dataset/code.yaml", "top_p: 1.0", "top_p: 0.9"), "generate@code"),
    (
        "an audit value of one dataset",
        lambda w: w.replace("conf/dataset/tools.yaml", "expect:", "audit: {gate: {min_accepted: 3}}\nexpect:"),
        "audit@tools",
    ),
    ("a training value", lambda w: w.replace("conf/train/default.yaml", "seed: 0", "seed: 9"), "train"),
    ("a line of prompts", lambda w: w.replace("data/tools.jsonl", "question 1", "question one"), "prompts@tools"),
    (
        "a line of code",
        lambda w: w.replace("pipeline/stages/gate/stage.py", "def run(", "PLANTED = 1\n\n\ndef run("),
        "gate@code gate@tools",
    ),
    ("a comment", lambda w: w.replace("pipeline/stages/gate/stage.py", "def run(", "# planted\ndef run("), ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change", "expected"), EDITS, ids=[edit[0] for edit in EDITS])
def test_a_real_run_runs_what_was_foretold_and_nothing_else(
    instant_build: InstantBuild, tmp_path: Path, name: str, change: Callable[[InstantBuild], None], expected: str
) -> None:
    """A stand-in's output differs whenever an input does, so that everything which follows really runs."""
    workspace = instant_build.copy(tmp_path / "w")
    change(workspace)
    workspace.call("compose")
    config, code = (json.loads((workspace.root / "build" / file).read_text()) for file in ("config.json", "code.json"))
    lock = read_lock(workspace.root / "dvc.lock")
    assert lock is not None
    foretold = stale(config, code, lock)
    assert set(foretold) == set(expected.split())
    ran: set[Any] = workspace.repro() - {"compose"}
    follows = (
        followers(foretold, config["names"]) if "code" not in name else []
    )  # the planted line changes no output, so nothing follows
    assert ran == {*foretold, *follows}
    if expected == "prompts@tools":  # the longest chain stands for all: every kind of stage but target ran in it
        assert workspace.repro() == set()
