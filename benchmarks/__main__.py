"""`python -m benchmarks [NAME ...]`: run the named benchmarks, or all, one after the other."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(names: list[str]) -> int:
    """Run them; return the number that failed."""
    known = sorted(
        path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_") and "def main(" in path.read_text()
    )
    if unknown := sorted(set(names) - set(known)):
        print(f"no benchmark {unknown}; there are {known}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or known:
        print(f"== {name}", flush=True)
        failed += (
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=HERE.parent, check=False).returncode != 0
        )
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
