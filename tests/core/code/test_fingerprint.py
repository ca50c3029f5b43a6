"""The code fingerprint: what counts as a change, and what the import walk sees."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.code import syntax_cache
from pipeline.core.code.fingerprint import ROOTS, fingerprints
from pipeline.core.code.modules import closure, modules
from pipeline.core.code.pins import read_pins
from pipeline.core.errors import ConfigError
from pipeline.graph import STAGES
from tests.conftest import ROOT

SMALL = {
    "pipeline/__init__.py": "",
    "pipeline/core/__init__.py": "",
    "pipeline/core/sections.py": "",
    "pipeline/core/http.py": "import numpy\n",
    "pipeline/stages/__init__.py": "",
    "pipeline/helper.py": "def twice(x):\n    return 2 * x\n",
    "pipeline/stages/a/__init__.py": "",
    "pipeline/stages/a/stage.py": "from pipeline.helper import twice\nimport pipeline.core.http\n",
    "pipeline/stages/b/__init__.py": "",
    "pipeline/stages/b/stage.py": "import orjson\n",
    "requirements.lock": "orjson==1.0\nnumpy==2.0\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in SMALL.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def changed(root: Path, name: str, text: str) -> set[str]:
    """Stages whose fingerprint moves when a file gets this text."""
    before = fingerprints(root, ["a", "b"])
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    after = fingerprints(root, ["a", "b"])
    return {stage for stage in before if before[stage] != after[stage]}


@pytest.mark.parametrize(
    ("name", "text", "stages"),
    [
        ("pipeline/helper.py", "def twice(x):\n    return 3 * x\n", {"a"}),
        ("pipeline/helper.py", "# a comment\ndef twice(x):\n    'A docstring.'\n    return (2  *  x)\n", set()),
        (
            "pipeline/helper.py",
            "import typing\nif typing.TYPE_CHECKING:\n    import numpy\ndef twice(x):\n    return 2 * x\n",
            {"a"},
        ),
        ("pipeline/stages/b/stage.py", "import orjson\nimport numpy\n", {"b"}),
        ("pipeline/stages/b/stage.py", "import orjson\ndef f():\n    from ...helper import twice\n", {"b"}),
        ("pipeline/core/sections.py", "x = 1\n", {"a", "b"}),
        ("pipeline/core/http.py", "import numpy\nx = 1\n", set()),
        ("pipeline/core/http.py", "", {"a"}),
        ("pipeline/stages/a/template.html", "<p>", {"a"}),
        ("pipeline/unused.py", "x = 1\n", set()),
        ("requirements.lock", "orjson==1.1\nnumpy==2.0\n", {"b"}),
        ("requirements.lock", "orjson==1.0\nnumpy==2.1\n", {"a"}),
    ],
)
def test_a_change_moves_exactly_the_stages_that_can_see_it(
    package: Path, name: str, text: str, stages: set[str]
) -> None:
    assert changed(package, name, text) == stages


def test_an_import_in_a_function_or_relative_or_of_a_name_is_followed(package: Path) -> None:
    (package / "pipeline/stages/a/stage.py").write_text("def f():\n    from ... import helper\n")
    assert "pipeline.helper" in closure(modules(package), ["pipeline.stages.a.stage"])
    (package / "pipeline/stages/a/stage.py").write_text("import pipeline.helper as h\n")
    assert "pipeline.helper" in closure(modules(package), ["pipeline.stages.a.stage"])


def test_a_type_checking_import_is_not_an_input(package: Path) -> None:
    (package / "pipeline/stages/a/stage.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pipeline.helper\n"
    )
    assert "pipeline.helper" not in closure(modules(package), ["pipeline.stages.a.stage"])


@pytest.mark.parametrize(
    "call", ["importlib.import_module('pipeline.helper')", "exec('import os')", "eval('1')", "__import__('os')"]
)
def test_a_call_that_hides_an_import_is_refused_with_its_line(package: Path, call: str) -> None:
    (package / "pipeline/stages/a/stage.py").write_text(f"import importlib\n{call}\n")
    with pytest.raises(ConfigError, match=r"a/stage\.py:2: .*hides an import"):
        fingerprints(package, ["a"])


def test_the_eval_mode_of_a_model_hides_nothing(package: Path) -> None:
    (package / "pipeline/stages/a/stage.py").write_text("def f(model):\n    model.eval()\n")
    assert fingerprints(package, ["a"])


def test_a_library_that_is_not_pinned_is_refused(package: Path) -> None:
    (package / "pipeline/stages/a/stage.py").write_text("import unheard_of\n")
    with pytest.raises(
        ConfigError, match=r"pipeline\.stages\.a\.stage imports 'unheard_of', which requirements\.lock does not pin"
    ):
        fingerprints(package, ["a"])


def test_a_lock_line_without_a_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("orjson==1\nnumpy>=2\n")
    with pytest.raises(ConfigError, match=r"lock:2: expected name==version, found 'numpy>=2'"):
        read_pins(tmp_path / "lock")


@pytest.fixture
def noting(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[dict[str, dict[str, object]], list[str]]]:
    """Take the fingerprints as a new process does; give them, and the files that were parsed."""
    parsed: list[str] = []

    def parse(path: Path, source: bytes) -> ast.Module:
        parsed.append(path.relative_to(package / "pipeline").as_posix())
        return ast.parse(source)

    def process() -> tuple[dict[str, dict[str, object]], list[str]]:
        monkeypatch.setattr(syntax_cache, "_known", {})
        parsed.clear()
        return fingerprints(package, ["a", "b"]), sorted(parsed)

    monkeypatch.setattr(syntax_cache, "parse", parse)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (package / "pipeline/__pycache__").mkdir()
    return process


def test_a_process_parses_only_what_changed_since_an_earlier_one(package: Path, noting: Callable[[], Any]) -> None:
    first, parsed = noting()
    assert {"helper.py", "stages/a/stage.py", "stages/b/stage.py"} <= set(parsed)
    assert noting() == (first, [])
    (package / "pipeline/helper.py").write_text("import numpy\n")
    second, parsed = noting()
    assert parsed == ["helper.py"]
    assert (second["a"] != first["a"], second["b"] == first["b"]) == (True, True)
    (package / "pipeline/helper.py").write_text("exec('import os')\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"helper\.py:1: exec\(\) hides an import"):
            noting()


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"[]",
        b"null",
        b'{"code": null}',
        b'{"facts": 1, "code": "CODE"}',
        b'{"code": "CODE", "facts": {"x": []}}',
        b"OTHER",
    ],
)
def test_a_note_that_is_damaged_or_of_other_code_says_nothing(
    package: Path, noting: Callable[[], Any], note: bytes
) -> None:
    wanted = noting()
    (file,) = (package / "pipeline/__pycache__").iterdir()
    code = syntax_cache._CODE.encode()
    file.write_bytes(file.read_bytes().replace(code, b"0" * 64) if note == b"OTHER" else note.replace(b"CODE", code))
    assert noting() == wanted


def test_nothing_is_noted_where_python_notes_nothing(
    package: Path, noting: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    noting()
    assert list((package / "pipeline/__pycache__").iterdir()) == []
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (package / "pipeline/__pycache__").rmdir()
    noting()
    assert not (package / "pipeline/__pycache__").exists()


LOADED = """
import importlib, json, sys
found = {}
for stage in sys.argv[1:]:
    for name in ["pipeline.core.sections", f"pipeline.stages.{stage}.stage"]:
        importlib.import_module(name)
    found[stage] = [name for name in sys.modules if name.split(".")[0] == "pipeline"]
    for name in found[stage]:  # the next stage loads all of ours anew; other packages, which take the time, stay
        del sys.modules[name]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """Modules of ours that Python loads for each stage, in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *(stage.name for stage in STAGES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("stage", [stage.name for stage in STAGES])
def test_what_a_stage_loads_lies_in_its_closure(stage: str, loaded: dict[str, list[str]]) -> None:
    """Python's own record of loaded modules is the witness that the static walk forgets nothing."""
    assert f"pipeline.stages.{stage}.stage" in loaded[stage]
    assert set(loaded[stage]) <= set(closure(modules(ROOT), [*ROOTS, f"pipeline.stages.{stage}.stage"]))


def test_every_shipped_stage_has_a_fingerprint_with_pinned_libraries() -> None:
    found = fingerprints(ROOT, [stage.name for stage in STAGES])
    assert set(found) == {stage.name for stage in STAGES}
    assert all(entry["libraries"] for entry in found.values())
