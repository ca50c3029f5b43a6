"""Where a benchmark's figures go, and what they say of the machine that made them."""

import json
import os
import platform
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "results"


def machine() -> dict[str, Any]:
    """The machine in neutral words."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cores": len(os.sched_getaffinity(0)), "memory_gib": round(pages / 2**30), "arch": platform.machine(), "python": platform.python_version()}


def save(name: str, figures: dict[str, Any]) -> None:
    """Write benchmarks/results/<name>.json and print it."""
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine(), **figures}, indent=2) + "\n"
    (FOLDER / f"{name}.json").write_text(text)
    print(text)
