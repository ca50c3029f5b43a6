"""A copy of this repository in which tests run real DVC, with its own git history, cache and ledger."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pipeline.__main__ import main

ROOT = Path(__file__).resolve().parent.parent
"""This repository."""

DEFAULTS = ROOT / "tests/data/defaults"
"""A copy of the shipped conf/, data/ and params.yaml, so that the tests pass when a user has edited the originals."""

_RAN = re.compile(r"^Running stage '([^']+)'", re.MULTILINE)


@dataclass(frozen=True)
class Workspace:
    """A clone in a temporary folder."""

    root: Path
    wrapper: tuple[str, ...] = ()
    """Prefix of every command, for example from `tests.linux_namespaces.offline_command`."""

    def environment(self) -> dict[str, str]:
        """Return the environment of a user's shell: none of the tests' variables, and this interpreter first."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "DVC_", "AERIE_", "OMP_"))
        }
        return {
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *command: str, check: bool = True, timeout: float = 3600) -> subprocess.CompletedProcess[str]:
        """Run a command here; with ``check`` a failure shows its whole output."""
        done = subprocess.run(
            [*self.wrapper, *command],
            cwd=self.root,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, (
            f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done

    def python(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `python -m pipeline ...` here."""
        return self.run(sys.executable, "-m", "pipeline", *arguments, check=check)

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m pipeline ...` in this process, unchecked; see the function `call`."""
        return call(self.root, self.environment(), *arguments)

    def repro(self, *targets: str) -> set[str]:
        """Run `dvc repro`; return the stages that ran."""
        return set(_RAN.findall(self.run("dvc", "repro", *targets).stdout))

    def write(self, name: str, text: str) -> None:
        """Write a file, with the folders above it."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def replace(self, name: str, old: str, new: str) -> None:
        """Replace the first occurrence of a text that the file must contain."""
        text = (self.root / name).read_text()
        assert text.count(old) >= 1, f"{name} does not contain {old!r}"
        self.write(name, text.replace(old, new, 1))


def call(folder: Path, environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m pipeline ...` in this process, which saves the start of an interpreter and all imports.

    Do not use it for a stage: its code would be this repository's, not the folder's.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        patch.dict(os.environ, environment, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main(list(arguments))
        except SystemExit as ended:  # argparse exits this way
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def read(workspace: Workspace, name: str) -> Any:
    """Read a JSON file of the build."""
    return json.loads((workspace.root / "build" / name).read_text())


def copy_of_repository(to: Path, wrapper: tuple[str, ...] = ()) -> Workspace:
    """Copy what git tracks or would add, with the shipped conf/, data/ and params.yaml, as a repository of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    edited_by_users = ("conf/", "data/", "build/", "params.yaml", "dvc.lock", "tests/")
    for name in filter(None, listed.stdout.split("\0")):
        source = ROOT / name
        if source.is_file() and not name.startswith(edited_by_users):
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, to / name)
    shutil.copytree(DEFAULTS, to, dirs_exist_ok=True)
    workspace = Workspace(to, wrapper)
    for command in (
        ["init", "-q", "-b", "main"],
        ["config", "user.email", "test@example.org"],
        ["config", "user.name", "Test"],
        ["add", "-A"],
        ["commit", "-qm", "start"],
    ):
        workspace.run("git", *command)
    return workspace
