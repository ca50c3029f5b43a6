"""The rules that keep the pipeline one-way: the stage table, dvc.yaml and the code say the same."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from docs import make_tree
from pipeline.core.code.modules import Module, closure, modules
from pipeline.core.sections import Section
from pipeline.graph import OF_THE_CLOCK, STAGES, Stage
from tests.conftest import ROOT

DVC: dict[str, Any] = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["stages"]
MODULES = modules(ROOT)
FILES = {name for name in MODULES if name.startswith("pipeline.core.files.")}
"""The only modules that open data files."""


WITH_TORCH = ("target", "extract", "train", "evaluate", "export")
"""Stages that take seconds to import."""


def dvc_path(template: str) -> str:
    return template.replace("{d}", "${item.dataset}")


def dvc_params(entry: dict[str, Any], file: str) -> list[str]:
    return next((item[file] for item in entry.get("params", []) if isinstance(item, dict) and file in item), [])


def names_of(items: list[Any]) -> list[str]:
    return [next(iter(item)) if isinstance(item, dict) else item for item in items]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_dvc_yaml_says_what_the_table_says(stage: Stage) -> None:
    entry = DVC[stage.name]
    assert entry["cmd"] == f"python -m pipeline {stage.name}" + (" ${item.dataset}" if stage.per_dataset else "")
    assert ("matrix" in entry) is stage.per_dataset
    assert set(dvc_params(entry, "build/config.json")) == {dvc_path(key) for key in stage.keys.values()}
    assert dvc_params(entry, "build/code.json") == [stage.name]
    reads = {dvc_path(path) for path in stage.reads.values() if "{each}" not in path}
    assert set(entry.get("deps", [])) == reads
    written = [name for kind in ("outs", "metrics", "plots") for name in names_of(entry.get(kind, []))]
    assert sorted(written) == sorted(dvc_path(path) for path in stage.writes.values())


def test_dvc_yaml_has_no_stage_but_compose_and_the_table() -> None:
    assert list(DVC) == ["compose", *(stage.name for stage in STAGES)]


def test_a_file_kept_in_git_is_a_metric_or_plot_and_never_an_out() -> None:
    """A stage with an uncached out is never saved to DVC's run cache, so it would run again after a branch switch."""
    for name, entry in DVC.items():
        if name != "compose":
            assert not [
                item
                for item in entry.get("outs", [])
                if isinstance(item, dict) and any(v.get("cache") is False for v in item.values())
            ]
        for item in [*entry.get("metrics", []), *entry.get("plots", [])]:
            if item not in map(dvc_path, OF_THE_CLOCK):
                assert next(iter(item.values()))["cache"] is False


@pytest.mark.parametrize(
    "stage",
    [pytest.param(stage, id=stage.name, marks=[pytest.mark.slow] * (stage.name in WITH_TORCH)) for stage in STAGES],
)
def test_run_takes_exactly_what_the_table_gives(stage: Stage) -> None:
    module = importlib.import_module(f"pipeline.stages.{stage.name}.stage")
    assert issubclass(module.Config, Section)
    assert set(module.Config.model_fields) == set(stage.keys) | set(stage.aside)
    assert not set(stage.keys) & set(stage.aside)
    parameters = inspect.signature(module.run).parameters
    keyword_only = {name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}
    assert keyword_only == set(stage.reads) | set(stage.writes)
    assert next(iter(parameters)) == "config"


def test_each_stage_reads_only_what_an_earlier_one_wrote() -> None:
    written: set[str] = set()
    for stage in STAGES:
        for path in stage.reads.values():
            wanted = path.replace("{each}", "{d}")
            assert any(wanted == known or known.startswith(f"{wanted}/") for known in written), (
                f"{stage.name} reads {path}"
            )
        written |= set(stage.writes.values())


TIERS = {
    "commands": 6,
    "project": 5,
    "stages": 4,
    "answers": 3,
    "drafter": 3,
    "standin": 3,
    "model": 2,
    "formats": 1,
    "core": 0,
}
"""Folder to height. An import goes down, never up or sideways to another folder of the same height."""


def folder_of(name: str) -> str:
    """Return the tier's folder of a module, or its file where it is at the root."""
    return name.split(".")[1] if "." in name else ""


def package_of(name: str) -> str:
    return ".".join(name.split(".")[:3])


def ours(module: Module) -> set[str]:
    """Return the modules of the package that a module imports."""
    found = set()
    for name in module.imports:
        while name not in MODULES and "." in name:
            name = name.rpartition(".")[0]
        if name in MODULES:
            found.add(name)
    return {name for name in found if "." in name and not (MODULES[name].is_package and name != module.name)}


@pytest.mark.parametrize(
    "module", [m for m in MODULES.values() if folder_of(m.name) in TIERS], ids=lambda module: module.name
)
def test_an_import_goes_down_the_tiers(module: Module) -> None:
    own = folder_of(module.name)
    for name in ours(module):
        other = folder_of(name)
        if other == "graph":
            assert TIERS[own] >= TIERS["project"], f"{module.name} knows the stage table"
            continue
        assert other in TIERS, f"{module.name} imports {name}, which belongs to no tier"
        assert other == own or TIERS[other] < TIERS[own], f"{module.name} imports {name}: up or sideways"


@pytest.mark.parametrize("module", [m for m in MODULES.values() if folder_of(m.name) == "stages"], ids=lambda m: m.name)
def test_a_stage_never_imports_another_stage(module: Module) -> None:
    others = {package_of(name) for name in ours(module) if folder_of(name) == "stages"}
    assert others <= {package_of(module.name)}


@pytest.mark.parametrize(
    "module", [m for m in MODULES.values() if folder_of(m.name) == "commands"], ids=lambda m: m.name
)
def test_a_command_never_imports_another_command(module: Module) -> None:
    assert not {name for name in ours(module) if folder_of(name) == "commands"} - {module.name}


def test_the_root_and_every_folder_stay_small() -> None:
    """A newcomer reads a folder's list of files at a glance."""
    package = ROOT / "pipeline"
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir() and path.name != "__pycache__")]:
        entries = [path.name for path in folder.iterdir() if path.name not in ("__init__.py", "__pycache__")]
        assert len(entries) <= (12 if folder == package else 18), f"{folder.relative_to(ROOT)}: {sorted(entries)}"


def _safe_names(module: Module) -> set[str]:
    return {alias.name for node in ast.walk(module.tree) if isinstance(node, ast.Import) for alias in node.names} | {
        node.module for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom) and node.module
    }


def test_hydra_is_imported_by_compose_and_sweep_alone() -> None:
    users = {m.name for m in MODULES.values() if any(name.split(".")[0] == "hydra" for name in _safe_names(m))}
    assert users <= {"pipeline.project.compose", "pipeline.project.overrides", "pipeline.sweep"}


def test_verify_and_compose_load_nothing_large() -> None:
    """The commit hook runs at every commit."""
    names = {name.split(".")[0] for found in closure(MODULES, ["pipeline.commands.verify"]).values() for name in found}
    assert not names & {"numpy", "pyarrow", "torch", "transformers", "tokenizers", "rich", "httpx", "aiohttp", "dvc"}


def test_no_stage_reaches_hydra() -> None:
    for stage in STAGES:
        assert "pipeline.project.compose" not in closure(MODULES, [f"pipeline.stages.{stage.name}.stage"])


@pytest.mark.parametrize("module", [m for m in MODULES.values() if m.path.name == "__init__.py"], ids=lambda m: m.name)
def test_an_init_file_is_empty(module: Module) -> None:
    """It runs for every module below it, so anything in it would be part of every stage that imports one of them."""
    assert module.tree.body == []


OPENERS = {
    "write_text",
    "write_bytes",
    "ParquetWriter",
    "write_table",
    "ParquetFile",
    "save_file",
    "safe_open",
    "load_file",
}


@pytest.mark.parametrize("module", [m for m in MODULES.values() if m.name not in FILES], ids=lambda m: m.name)
def test_data_files_are_opened_in_one_place(module: Module) -> None:
    ours = {"write_text", "write_bytes"}  # functions of pipeline.core.files.atomic, called by plain name
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            called = node.func.id
            assert called != "open", f"{module.path}:{node.lineno} opens a file itself"
            assert called not in OPENERS - ours, f"{module.path}:{node.lineno} calls {called}"
        elif isinstance(node.func, ast.Attribute):
            called = node.func.attr
            assert called not in OPENERS, f"{module.path}:{node.lineno} calls .{called}"


def test_no_module_pickles() -> None:
    for module in MODULES.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("torch", "load"), ("pickle", "loads"), ("pickle", "load")}, (
                    f"{module.path}:{node.lineno}"
                )


def test_every_module_says_what_it_is_for() -> None:
    assert [m.name for m in MODULES.values() if m.tree.body and not ast.get_docstring(m.tree)] == []


def test_the_tree_in_the_docs_is_current() -> None:
    assert make_tree.whole_tree() == (ROOT / "docs/tree.md").read_text(), "run python docs/make_tree.py"


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_docs_name_only_files_that_exist(page: Path) -> None:
    paths = re.findall(r"`((?:pipeline|tests|benchmarks|docs)/[\w./-]+)`", page.read_text())
    assert [path for path in paths if path != "pipeline/__pycache__/" and not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_stages_load_only_what_they_use() -> None:
    """In a process of its own, since here everything is loaded."""
    code = """
import sys
import pipeline.stages.calibrate.stage, pipeline.stages.gate.stage
assert not {"numpy", "pyarrow", "torch"} & set(sys.modules), "nothing to compare, nothing to load"
import pipeline.stages.audit.stage, pipeline.stages.reconstruct.stage
from pipeline.model.rendering import PromptRenderer
from pipeline.project.targets import open_target
renderer = PromptRenderer(*open_target("kimi_k25"))
assert renderer.render([{"role": "user", "content": "hi"}])
assert not {"openai", "aiohttp", "httpx", "torch", "transformers", "dvc"} & set(sys.modules), sorted(sys.modules)
import renderers
assert type(renderer._renderer) is renderers.KimiK25Renderer, "a later import gets the whole library, same classes"
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
