"""Run the named benchmarks, or all of them, one after the other: `python -m benchmarks [NAME ...]`."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(names: list[str]) -> int:
    """Run the benchmarks; return the number that failed, or 2 for an unknown name."""
    benchmarks = sorted(
        path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_") and "def main(" in path.read_text()
    )
    if unknown := sorted(set(names) - set(benchmarks)):
        print(f"unknown benchmarks {unknown}; choose from {benchmarks}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or benchmarks:
        print(f"== {name}", flush=True)
        failed += (
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=HERE.parent, check=False).returncode != 0
        )
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
