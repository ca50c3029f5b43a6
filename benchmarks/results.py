"""Result files of the benchmarks, each with a description of the machine."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "results"


def machine() -> dict[str, Any]:
    """Return the machine's cores, memory, architecture and Python version."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30),
        "arch": platform.machine(),
        "python": platform.python_version(),
    }


def save(name: str, figures: dict[str, Any]) -> None:
    """Write benchmarks/results/<name>.json and print it."""
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine(), **figures}, indent=2) + "\n"
    (FOLDER / f"{name}.json").write_text(text)
    print(text)


def in_a_process(module: str, *arguments: str) -> dict[str, float]:
    """Do one measurement of a benchmark (`--one`) in its own process, with cold caches and its own memory peak."""
    command = [sys.executable, "-m", module, "--one", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONHASHSEED": "0"}
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
