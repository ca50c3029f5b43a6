"""Where a benchmark's figures go, and what they say of the machine that made them."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "results"


def machine() -> dict[str, Any]:
    """The machine in neutral words."""
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
    """Do one measurement of a benchmark (`--one`) in a process of its own, so that nothing is warm, and no memory is another's."""
    command = [sys.executable, "-m", module, "--one", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONHASHSEED": "0"}
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
