"""The style sheet and the script: in every page, in the code fingerprint, and in the wheel."""

import shutil
import tomllib
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from pipeline.core.code.fingerprint import fingerprints
from pipeline.core.html.frame import POLICY, page
from pipeline.core.html.markup import tag
from tests.conftest import ROOT


@pytest.mark.parametrize(("element", "name"), [("style", "report.css"), ("script", "report.js")])
def test_a_page_holds_the_file_itself_and_the_policy_admits_exactly_this_text(element: str, name: str) -> None:
    found = page("t", [("a", "A", tag("p", "x"))])
    inside = found.split(f"<{element}>")[1].split(f"</{element}>")[0]
    assert inside == "\n" + (ROOT / "pipeline/core/html" / name).read_text("utf-8")
    digest = b64encode(sha256(inside.encode()).digest()).decode()
    assert f"{element}-src 'sha256-{digest}';" in POLICY
    assert "http" not in inside


@pytest.mark.parametrize("name", ["report.css", "report.js"])
def test_an_edit_of_the_style_or_the_script_reruns_the_audit_and_not_the_gate(name: str, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline", ignore=ignored)
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    before = fingerprints(tmp_path, ["audit", "gate"])
    with (tmp_path / "pipeline/core/html" / name).open("a") as file:
        file.write("\n")
    after = fingerprints(tmp_path, ["audit", "gate"])
    assert {stage for stage in before if before[stage] != after[stage]} == {"audit"}


def test_the_wheel_has_every_file_of_the_package_that_is_not_python() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    shipped = {
        path
        for package, globs in patterns.items()
        for glob in globs
        for path in (ROOT / package.replace(".", "/")).glob(glob)
    }
    there = {path for path in (ROOT / "pipeline").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in there if path.suffix not in (".py", ".typed")} == shipped
