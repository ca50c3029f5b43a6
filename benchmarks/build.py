"""The default build from a clean clone: time of each stage, peak memory and quality; and the same from a second clone.

    python -m benchmarks.build            about ten minutes on two cores

The files of the two clones are compared byte by byte.
"""

import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.results import save

ROOT = Path(__file__).resolve().parent.parent
_RUNNING = re.compile(r"Running stage '([^']+)'")


def clone(to: Path) -> Path:
    """Clone the last commit, with its own ledger and DVC cache."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(to)], check=True)
    return to


def environment() -> dict[str, str]:
    """Return a shell's environment with this interpreter first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "DVC_", "AERIE_"))}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"}


def build(root: Path) -> dict[str, float]:
    """Run `dvc repro`; return the seconds from each stage's start to the next one's."""
    process = subprocess.Popen(
        ["dvc", "repro"], cwd=root, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    marks: list[tuple[str, float]] = [("dvc", time.monotonic())]
    marks.extend((match[1], time.monotonic()) for line in process.stdout if (match := _RUNNING.search(line)))
    if process.wait() != 0:
        raise SystemExit(f"dvc repro failed in {root}")
    marks.append(("end", time.monotonic()))
    return {name: round(after - start, 2) for (name, start), (_, after) in pairwise(marks)}


def digests(root: Path) -> dict[str, str]:
    """Return the digest of every file under build/."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((root / "build").rglob("*"))
        if path.is_file()
    }


def quality(root: Path) -> dict[str, Any]:
    """Return the build's own quality figures."""
    names = json.loads((root / "build/config.json").read_text())["names"]
    return {
        "target": json.loads((root / "build/target/metrics.json").read_text()),
        "calibration": {name: json.loads((root / f"build/{name}/calibration.json").read_text()) for name in names},
        "drafter": json.loads((root / "build/drafter/eval.json").read_text()),
    }


def holds_times(name: str) -> bool:
    """Return whether a file's purpose is to show measured times."""
    return name.endswith(("/timings.jsonl", "/timings.json", "/audit/report.html"))


def main() -> None:
    """Build in two clean clones, and once more with nothing to do."""
    with tempfile.TemporaryDirectory() as folder:
        first = clone(Path(folder) / "first")
        begun = time.monotonic()
        stages = build(first)
        total = time.monotonic() - begun
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        begun = time.monotonic()
        assert set(build(first)) == {"dvc"}, "a second build must do nothing"
        idle = time.monotonic() - begun
        second = clone(Path(folder) / "second")
        build(second)
        one, two = digests(first), digests(second)
        different = sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
        save(
            "build",
            {
                "seconds": round(total, 1),
                "seconds_by_stage": stages,
                "peak_gib_of_largest_process": round(peak, 2),
                "noop_seconds": round(idle, 2),
                "files": len(one),
                "files_that_differ_between_two_clean_builds": [name for name in different if not holds_times(name)],
                "files_with_times_that_differ": [name for name in different if holds_times(name)],
                "quality": quality(first),
            },
        )


if __name__ == "__main__":
    main()
