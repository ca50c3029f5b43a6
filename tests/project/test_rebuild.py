"""Which stages a change makes stale, asked of DVC itself: every module, every config key, every prompt file.

The stages' outputs are stand-in files, and `dvc commit` records them as built, so each answer takes a second instead of
a build; `tests/test_end_to_end.py` builds for real. The expectations for config keys are written by hand below; those
for modules come from Python's own record of what each stage loads.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo

from pipeline.commands import compose as compose_command
from pipeline.core.code.fingerprint import PLUMBING_VERSION, ROOTS, fingerprints, is_plumbing
from pipeline.core.code.modules import closure, modules
from pipeline.graph import STAGES
from pipeline.project.versions.lockfile import read_lock
from pipeline.project.versions.staleness import stale
from tests.conftest import SHARE
from tests.workspace import Workspace, copy_of_repository

pytestmark = pytest.mark.slow

DATASETS = ("code", "tools")
"""Two shipped datasets: two show that a change of one does not rerun the other, and a third would show nothing more."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A clone that DVC believes to be built."""
    workspace = copy_of_repository(tmp_path_factory.mktemp("clone"))
    workspace.replace("params.yaml", "- reasoning\n", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace.root)
        workspace.python("compose")
        for stage in STAGES:
            for dataset in DATASETS if stage.per_dataset else (None,):
                for template in stage.writes.values():
                    path = template.format(d=dataset)
                    name = path if Path(path).suffix else f"{path}/file"
                    workspace.write(name, json.dumps(name))
        workspace.run("dvc", "commit", "-f", "-q")
        assert composed(workspace) == set()
        yield workspace


def by_dvc(workspace: Workspace) -> set[str]:
    """Stages whose own inputs changed, by DVC's account."""
    with Repo(str(workspace.root)) as repo:
        return set(repo.status()) - {"compose"}


def composed(workspace: Workspace) -> set[str]:
    """Stages whose own inputs changed, by DVC's account, after composing."""
    compose_command.main([])
    return by_dvc(workspace)


def stage_of(name: str) -> set[str]:
    """`audit` stands for the audit of all datasets, `audit@code` for one."""
    per_dataset = {stage.name for stage in STAGES if stage.per_dataset}
    return {f"{name}@{dataset}" for dataset in DATASETS} if name in per_dataset else {name}


def expand(names: str) -> set[str]:
    return {found for name in names.split() for found in stage_of(name)}


def after(workspace: Workspace, file: str, change: Callable[[str], str]) -> set[str]:
    """Stages that a change to a file makes stale; the file is put back."""
    path = workspace.root / file
    before = path.read_bytes()
    changed = change(before.decode())
    assert changed != before.decode(), f"the planted change does not change {file}"
    try:
        path.write_bytes(changed.encode())
        return composed(workspace)
    finally:
        path.write_bytes(before)


def swap(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text, f"{old!r} not found"
        return text.replace(old, new, 1)

    return change


def sections(text: str) -> list[str]:
    """Top-level entries of a YAML file."""
    return [part for part in re.split(r"^(?=\w)", text, flags=re.MULTILINE) if part.strip()]


EDITS = [
    # one dataset's own keys
    ("conf/dataset/code.yaml", swap("temperature: 0.", "temperature: 1."), "generate@code"),
    ("conf/dataset/code.yaml", swap("top_p: 1.0", "top_p: 0.9"), "generate@code"),
    ("conf/dataset/code.yaml", swap("max_tokens: 1", "max_tokens: 2"), "generate@code reconstruct@code"),
    ("conf/dataset/code.yaml", swap("usd: ", "usd: 9"), "generate@code"),
    ("conf/dataset/code.yaml", swap("limit: null", "limit: 7"), "prompts@code"),
    (
        "conf/dataset/code.yaml",
        swap("send_tools: false", "send_tools: true"),
        "prompts@code generate@code reconstruct@code",
    ),
    ("conf/dataset/code.yaml", swap("reasoning: required", "reasoning: optional"), "audit@code"),
    ("conf/dataset/code.yaml", lambda text: text + "audit: {gate: {min_accepted: 3}}\n", "audit@code"),
    ("conf/dataset/code.yaml", lambda text: "# a comment\n" + text + "\n\n", ""),
    ("conf/dataset/code.yaml", lambda text: text.replace(": ", ":    "), ""),
    ("conf/dataset/code.yaml", lambda text: "".join(reversed(sections(text))), ""),
    ("conf/dataset/tools.yaml", swap("temperature: 0.", "temperature: 1."), "generate@tools"),
    # what all datasets share
    ("conf/config.yaml", swap("usd: ", "usd: 9"), "generate"),
    ("conf/config.yaml", swap("on_exhausted: stop", "on_exhausted: fail"), "generate"),
    ("conf/provider/embedded.yaml", swap("concurrency: 64", "concurrency: 32"), "generate"),
    ("conf/provider/embedded.yaml", swap("allow: []", "allow: [nobody]"), "generate audit"),
    ("conf/target/tiny_kimi.yaml", swap("lr: 0.00", "lr: 0.01"), "target"),
    ("conf/target/kimi_k25.yaml", swap("revision: null", "revision: abc"), "target"),
    ("conf/audit/default.yaml", swap("min_accepted: ", "min_accepted: 1"), "audit"),
    ("conf/audit/default.yaml", swap("max_error_rate: 0.", "max_error_rate: 0.9"), "audit"),
    ("conf/extract/default.yaml", swap("tokens_per_batch: 4096", "tokens_per_batch: 2048"), "extract"),
    ("conf/extract/default.yaml", swap("dtype: bfloat16", "dtype: float32"), "extract"),
    ("conf/train/default.yaml", swap("lr: 0.00", "lr: 0.01"), "train"),
    ("conf/train/default.yaml", swap("seed: 0", "seed: 1"), "train"),
    ("conf/train/default.yaml", swap("loss_mask: completion+tools", "loss_mask: completion"), "train"),
    ("conf/evaluate/default.yaml", swap("draft_tokens: 4", "draft_tokens: 5"), "evaluate"),
    # unused choices
    ("conf/target/qwen3.yaml", swap("revision: null", "revision: abc"), ""),
    ("conf/provider/openrouter.yaml", swap("concurrency: 2000", "concurrency: 1000"), ""),
    # address and speed of a server; the build uses none, and a test below checks that no such key is a param
    ("conf/extract/vllm.yaml", swap("url: http://127.0.0.1", "url: http://gpu7"), ""),
    # prompt files
    (
        "data/code.jsonl",
        lambda text: text + '{"id":"new","messages":[{"role":"user","content":"hi"}]}\n',
        "prompts@code",
    ),
    ("data/code.jsonl", lambda text: text.split("\n", 1)[1], "prompts@code"),
    ("data/code.jsonl", lambda text: "".join(reversed(text.splitlines(keepends=True))), "prompts@code"),
    ("data/code.jsonl", swap('"content":', '"content": '), "prompts@code"),
    ("data/tools.jsonl", lambda text: text + "\n", "prompts@tools"),
    ("data/tools.jsonl", swap('"content":"', '"content":"And '), "prompts@tools"),
    (
        "data/heldout.jsonl",
        lambda text: text + '{"id":"new","dataset":"code","messages":[{"role":"user","content":"hi"}]}\n',
        "evaluate audit",
    ),
    # params.yaml
    ("params.yaml", swap("overrides: []", "overrides: [train.lr=0.5]"), "train"),
    ("params.yaml", swap("overrides: []", "overrides: [datasets.tools.sampling.seed=9]"), "generate@tools"),
    ("params.yaml", swap("- tools\n- code\n", "- code\n- tools\n"), ""),
    # the code
    ("pipeline/stages/audit/stage.py", lambda text: text + "\nPLANTED = 1\n", "audit"),
    ("pipeline/stages/audit/stage.py", lambda text: text + "\n# planted\n", ""),
    ("pipeline/stages/train/stage.py", lambda text: text + "\nPLANTED = 1\n", "train"),
    ("pipeline/core/sections.py", lambda text: text + "\nPLANTED = 1\n", " ".join(stage.name for stage in STAGES)),
    ("pipeline/core/files/tables.py", lambda text: text + "\nPLANTED = 1\n", ""),
    ("pipeline/core/process/exit_codes.py", lambda text: text + "\nPLANTED = 1\n", ""),
    ("pipeline/graph.py", lambda text: text + "\nPLANTED = 1\n", ""),
    ("pipeline/__main__.py", lambda text: text + "\nPLANTED = 1\n", ""),
    ("pipeline/commands/status.py", lambda text: text + "\nPLANTED = 1\n", ""),
    # libraries
    (
        "requirements.lock",
        swap("splintr-rs==", "splintr-rs==9"),
        "target generate reconstruct calibrate audit evaluate",
    ),
    ("requirements.lock", swap("mypy==", "mypy==9"), ""),
]


@pytest.mark.parametrize(
    ("file", "change", "names"), EDITS, ids=[f"{file}-{n}" for n, (file, _, _) in enumerate(EDITS)]
)
def test_an_edit_makes_exactly_these_stages_stale(
    built: Workspace, file: str, change: Callable[[str], str], names: str
) -> None:
    assert after(built, file, change) == expand(names)


def leaves(value: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*where, key))
    else:
        yield where


def given(dotted: str) -> frozenset[str]:
    """Stages whose declared keys hold a value."""
    found = set()
    for stage in STAGES:
        for dataset in DATASETS if stage.per_dataset else ("",):
            keys = [key.format(d=dataset) for key in stage.keys.values()]
            if any(dotted == key or dotted.startswith(f"{key}.") for key in keys):
                found.add(f"{stage.name}@{dataset}" if dataset else stage.name)
    return frozenset(found)


def test_composed_values_are_inputs_of_the_stages_that_are_given_them_and_of_no_other(built: Workspace) -> None:
    """The runner hands a stage only its declared keys, so a value may make stale those stages and must not miss one."""
    path = built.root / "build/config.json"
    before = path.read_bytes()
    code, lock = json.loads((built.root / "build/code.json").read_bytes()), read_lock(built.root / "dvc.lock")
    assert lock is not None
    asked: set[frozenset[str]] = set()
    for leaf in leaves(json.loads(before)):
        expected = given(".".join(leaf))
        changed = json.loads(before)
        holder = changed
        for part in leaf[:-1]:
            holder = holder[part]
        holder[leaf[-1]] = (
            holder["names"][::-1] if leaf == ("names",) else ["planted"]
        )  # other names would be other stages
        assert set(stale(changed, code, lock)) == expected, f"a change of {'.'.join(leaf)}"
        if expected not in asked:  # asking DVC takes a second, and it tells keys apart, not the leaves below them
            asked.add(expected)
            try:
                path.write_text(json.dumps(changed))
                assert by_dvc(built) == expected, f"a change of {'.'.join(leaf)}"
            finally:
                path.write_bytes(before)
    assert len(asked) > 16


def test_a_planted_change_in_each_module_makes_stale_exactly_the_stages_that_load_it_for_other_than_plumbing(
    built: Workspace,
) -> None:
    """Modules are asked of the fingerprints that DVC compares, and every twentieth of DVC itself."""
    known = modules(built.root)
    names = [stage.name for stage in STAGES]
    before = fingerprints(built.root, names)
    closures = {name: closure(known, [*ROOTS, f"pipeline.stages.{name}.stage"]) for name in names}
    planted = [module for module in known.values() if module.tree.body]
    for number, module in enumerate(planted[::SHARE]):
        expected = {name for name in names if module.name in closures[name] and not is_plumbing(module.name)}
        source = module.path.read_bytes()
        try:
            module.path.write_bytes(source + b"\nPLANTED = 1\n")
            now = fingerprints(built.root, names)
            assert {name for name in names if now[name] != before[name]} == expected, f"a change of {module.path}"
            if number % (20 // SHARE) == 0:
                assert composed(built) == {found for name in expected for found in stage_of(name)}, (
                    f"a change of {module.path}"
                )
        finally:
            module.path.write_bytes(source)


def test_a_raised_version_of_the_plumbing_makes_every_stage_stale(built: Workspace) -> None:
    """In a process of its own: this one has the version of this repository."""
    path = built.root / "pipeline/core/code/fingerprint.py"
    before = path.read_bytes()
    line = f"PLUMBING_VERSION = {PLUMBING_VERSION}".encode()
    assert line in before
    try:
        path.write_bytes(before.replace(line, b"%b0" % line))
        built.python("compose")
        assert by_dvc(built) == {found for stage in STAGES for found in stage_of(stage.name)}
    finally:
        path.write_bytes(before)
        built.python("compose")


def test_comments_docstrings_and_formatting_of_any_module_make_nothing_stale(built: Workspace) -> None:
    """All modules at once: unparsing drops every comment and all formatting."""
    saved = {path: path.read_bytes() for path in (built.root / "pipeline").rglob("*.py")}
    try:
        for path, text in saved.items():
            path.write_text(ast.unparse(ast.parse(text)) + "\n# planted\n")
        assert composed(built) == set()
    finally:
        for path, text in saved.items():
            path.write_bytes(text)
