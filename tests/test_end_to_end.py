"""The whole pipeline, for real: a clean clone, `dvc repro`, an edit, and what ran then.

Two clones build a reduced config and must agree byte for byte. Every stage is the real one: a model is trained and
served over HTTP, and its answers go through all stages; `tests/test_default_build.py` does the same with the shipped
default.
"""

import hashlib
import signal
import subprocess
import sys

import pytest

from benchmarks.build import holds_times
from tests.linux_namespaces import offline_command
from tests.workspace import Workspace, copy_of_repository, read

pytestmark = pytest.mark.slow

PARAMS = """\
datasets:
- tools
- code
overrides:
- datasets.tools.prompts.limit=16
- datasets.code.prompts.limit=16
- target.tiny.tokens=60000
- audit.gate.max_error_rate=1.0
- audit.gate.min_accepted=1
- train.epochs=1
- evaluate.limit=2
- evaluate.max_new_tokens=48
"""


def digests(workspace: Workspace) -> dict[str, str]:
    folder = workspace.root / "build"
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def reduced(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = copy_of_repository(tmp_path_factory.mktemp("reduced") / "clone", offline_command() or ())
    workspace.write("params.yaml", PARAMS)
    workspace.repro()
    return workspace


def test_nothing_runs_a_second_time(reduced: Workspace) -> None:
    assert reduced.repro() == set()


def test_two_clean_clones_agree_byte_for_byte(reduced: Workspace, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One dataset, up to its hidden states.

    The later stages run twice in their own tests, and `benchmarks/build.py` compares two whole builds.
    """
    other = copy_of_repository(tmp_path_factory.mktemp("other") / "clone")
    other.write("params.yaml", PARAMS)
    other.repro("extract@tools")
    ours, theirs = digests(reduced), digests(other)
    assert (
        {"target", "tools", "extracted"}
        <= {name.split("/")[0] for name in theirs}
        <= {name.split("/")[0] for name in ours}
    )
    assert not [name for name in theirs if ours[name] != theirs[name] and not holds_times(f"/{name}")]


def test_an_edited_threshold_runs_the_audit_again_and_nothing_that_costs(reduced: Workspace) -> None:
    reduced.replace("conf/audit/default.yaml", "min_accepted: 20", "min_accepted: 19")
    ran = reduced.repro()
    assert {"compose"} <= ran
    assert {"audit@tools", "audit@code"} == {name for name in ran if name.startswith("audit")} or ran == {"compose"}
    assert not {
        name
        for name in ran
        if name.split("@")[0] in {"generate", "reconstruct", "extract", "train", "evaluate", "export"}
    }


def test_one_datasets_temperature_runs_its_own_chain_only(reduced: Workspace) -> None:
    reduced.replace("conf/dataset/code.yaml", "temperature: 0.8", "temperature: 0.7")
    ran = reduced.repro()
    assert {"generate@code", "reconstruct@code", "audit@code", "extract@code", "train", "evaluate", "export"} <= ran
    assert not {name for name in ran if name.endswith("@tools")}
    assert not ran & {"target", "prompts@code"}


def test_a_comment_runs_compose_and_nothing_else(reduced: Workspace) -> None:
    path = reduced.root / "pipeline/stages/audit/stage.py"
    path.write_text(path.read_text() + "\n# a remark\n")
    assert reduced.repro() == {"compose"}


def test_going_back_pays_nothing_and_gives_the_same_bytes(reduced: Workspace) -> None:
    before = (reduced.root / "build/code/responses.jsonl").read_bytes()
    reduced.replace("conf/dataset/code.yaml", "temperature: 0.7", "temperature: 0.6")
    reduced.run("dvc", "repro", "generate@code")
    assert (reduced.root / "build/code/responses.jsonl").read_bytes() != before
    reduced.replace("conf/dataset/code.yaml", "temperature: 0.6", "temperature: 0.7")
    done = reduced.run("dvc", "repro", "generate@code")
    assert (reduced.root / "build/code/responses.jsonl").read_bytes() == before
    assert "the ledger answers all 16 prompts; nothing is sent" in done.stdout + done.stderr


def test_a_gate_that_says_no_stops_before_extract_and_keeps_the_audit(reduced: Workspace) -> None:
    reduced.replace("params.yaml", "audit.gate.min_accepted=1", "audit.gate.min_accepted=100000")
    done = reduced.run("dvc", "repro", check=False)
    assert done.returncode != 0
    assert "no-go" in done.stdout + done.stderr
    summary = read(reduced, "code/audit/summary.json")
    assert summary["gate"]["verdict"] == "no-go"
    assert "Running stage 'extract@" not in done.stdout
    reduced.replace("params.yaml", "audit.gate.min_accepted=100000", "audit.gate.min_accepted=1")
    reduced.repro()


def test_a_killed_stage_leaves_no_half_artifact_and_the_next_run_finishes(reduced: Workspace) -> None:
    before = digests(reduced)
    reduced.replace("params.yaml", "train.epochs=1", "train.epochs=500")  # it must not be done before it is killed
    process = subprocess.Popen(
        ["dvc", "repro"], cwd=reduced.root, env=reduced.environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("train: "):  # it has begun
            break
    else:
        raise AssertionError("train did not run")
    process.send_signal(signal.SIGKILL)
    process.stdout.read()  # to the end of the pipe, which the stage has as well: it ends with DVC
    process.wait()
    process.stdout.close()
    left = {path.name for path in (reduced.root / "build/drafter").iterdir()}
    assert (
        "checkpoint" not in left
        or digests(reduced)["drafter/checkpoint/model.safetensors"] == before["drafter/checkpoint/model.safetensors"]
    )
    reduced.replace("params.yaml", "train.epochs=500", "train.epochs=1")
    reduced.repro()
    after = digests(reduced)
    assert {
        name for name in after if after[name] != before.get(name) and not name.startswith(("config", "code"))
    } == set()


@pytest.mark.parametrize(
    ("file", "old", "new", "stage", "says"),
    [
        ("conf/target/kimi_k25.yaml", '"<|im_end|>": 163586', '"<|im_end|>": 163533', "target", "ordinary text 'chas'"),
        (
            "params.yaml",
            "- train.epochs=1",
            "- train.epochs=1\n- provider.allow=[nobody]",
            "generate@code",
            "no endpoint may answer under the policy",
        ),
    ],
)
def test_a_wrong_value_stops_the_build_with_its_reason(
    reduced: Workspace, file: str, old: str, new: str, stage: str, says: str
) -> None:
    before = (reduced.root / file).read_text()
    try:
        reduced.replace(file, old, new)
        done = reduced.run("dvc", "repro", stage, check=False)
        assert done.returncode != 0
        assert says in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
    finally:
        (reduced.root / file).write_text(before)


@pytest.mark.skipif(
    offline_command() is None, reason="this kernel grants no network namespace, so being offline cannot be proven"
)
def test_the_build_ran_where_only_loopback_exists(reduced: Workspace) -> None:
    assert reduced.wrapper, "every command of the reduced build ran in a namespace without a network"
    probe = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=2)"
    assert "unreachable" in reduced.run(sys.executable, "-c", probe, check=False).stderr
