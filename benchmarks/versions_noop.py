"""Cost of a build with nothing to do: `dvc repro` and `verify` with 3 and with 50 datasets, and its parts.

The outputs are small fake files with a matching dvc.lock, since only the bookkeeping is measured.
"""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

from benchmarks.results import save
from pipeline.project.versions.lockfile import file_digest, folder_digest
from pipeline.project.versions.merge_driver import render
from pipeline.project.versions.staleness import CODE, CONFIG, instances

ROOT = Path(__file__).resolve().parent.parent
FRESH = "verify in a fresh clone"
"""The case in which neither compiled modules nor digests of their syntax exist yet."""


def run(root: Path, *command: str) -> tuple[float, str]:
    """Run a command; return its seconds and its output."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "DVC_", "PYTHONDONTWRITE"))
    }
    begin = time.monotonic()
    environment = {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"}
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return time.monotonic() - begin, done.stdout + done.stderr


def repository(root: Path, datasets: int) -> list[str]:
    """Copy this repository with ``datasets`` datasets, compose it, and return their names."""
    for name in (
        "conf",
        "data",
        "pipeline",
        "params.yaml",
        "dvc.yaml",
        "requirements.lock",
        ".dvc/config",
        ".dvcignore",
        ".gitignore",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, root / name)
    names = [f"set{n:02}" for n in range(datasets)]
    for name in names:
        shutil.copy(root / "conf/dataset/code.yaml", root / f"conf/dataset/{name}.yaml")
    listed = "".join(f"- {name}\n" for name in names)
    (root / "params.yaml").write_text(f"datasets:\n{listed}overrides: []\n")
    run(root, "git", "init", "-q")
    run(root, sys.executable, "-m", "pipeline", "compose")
    return names


def store(root: Path, content: bytes, digest: str) -> str:
    """Put an object into DVC's cache; return its digest."""
    path = root / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return digest


def item(root: Path, path: str) -> dict[str, Any]:
    """Return the entry of a file or folder in dvc.lock; its objects go into the cache."""
    full_path = root / path
    if full_path.is_file():
        content = full_path.read_bytes()
        return {"path": path, "hash": "md5", "md5": store(root, content, file_digest(content)), "size": len(content)}
    files = {file.relative_to(full_path).as_posix(): file for file in sorted(full_path.rglob("*")) if file.is_file()}
    digests = {name: store(root, file.read_bytes(), file_digest(file.read_bytes())) for name, file in files.items()}
    listed = json.dumps([{"md5": digests[name], "relpath": name} for name in sorted(digests)], sort_keys=True).encode()
    digest = store(root, listed, folder_digest(digests))
    return {
        "path": path,
        "hash": "md5",
        "md5": digest,
        "size": sum(file.stat().st_size for file in files.values()),
        "nfiles": len(files),
    }


def pretend(root: Path, names: list[str]) -> None:
    """Write every output, and a dvc.lock as if the build had made them."""
    config, code = (json.loads((root / path).read_text()) for path in (CONFIG, CODE))
    stages = list(instances(names))
    for _, stage, name in stages:
        for template in stage.writes.values():
            path = root / template.format(d=name)
            path = path if path.suffix else path / "file"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(path.relative_to(root).as_posix()))
    entries: dict[str, Any] = {}
    for label, stage, name in stages:
        keys = sorted(template.format(d=name) for template in stage.keys.values())
        params: dict[str, Any] = {CODE: {stage.name: code[stage.name]}}
        if keys:
            params[CONFIG] = {
                key: deepcopy(_at(config, key)) for key in keys
            }  # otherwise YAML writes an alias, which DVC never does
        reads = sorted({template.format(d=name) for template in stage.reads.values() if "{each}" not in template})
        writes = sorted(template.format(d=name) for template in stage.writes.values())
        entries[label] = {
            "cmd": f"python -m pipeline {stage.name}" + (f" {name}" if name else ""),
            "deps": [item(root, path) for path in reads],
            "params": params,
            "outs": [item(root, path) for path in writes],
        }
    (root / "dvc.lock").write_bytes(render(entries))


def _at(document: Any, path: str) -> Any:
    for part in path.split("."):
        document = document[part]
    return document


def measure(datasets: int) -> dict[str, Any]:
    """Time the commands on a repository with ``datasets`` datasets."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        pretend(root, repository(root, datasets))
        first = run(root, "dvc", "repro")[1]  # compose runs once; DVC remembers the files' digests
        assert re.findall("Running stage '([^']+)'", first) == ["compose"], first
        figures: dict[str, Any] = {"dvc.lock lines": (root / "dvc.lock").read_text().count("\n")}
        for name, command in (
            ("dvc repro", ("dvc", "repro")),
            ("dvc stage list (reading dvc.yaml)", ("dvc", "stage", "list", "--name-only")),
            ("verify", (sys.executable, "-m", "pipeline", "verify")),
            (FRESH, (sys.executable, "-m", "pipeline", "verify")),
            ("compose", (sys.executable, "-m", "pipeline", "compose")),
        ):
            times, before = [], resource.getrusage(resource.RUSAGE_CHILDREN)
            for _ in range(3):
                for compiled in list((root / "pipeline").rglob("__pycache__")) if name == FRESH else []:
                    shutil.rmtree(compiled)
                seconds, output = run(root, *command)
                times.append(round(seconds, 2))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 3
            figures[name] = {"seconds": times, "cpu_seconds": round(used, 2)}
            if name == "dvc repro":
                assert "Running stage" not in output, output
        return figures


def main() -> None:
    """Measure 3 and 50 datasets."""
    save("versions_noop", {f"{datasets} datasets": measure(datasets) for datasets in (3, 50)})


if __name__ == "__main__":
    main()
