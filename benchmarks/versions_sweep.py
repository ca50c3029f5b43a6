"""Four trainings as a sweep on a finished build: what ran, and how much longer than the trainings alone it took.

python -m benchmarks.versions_sweep [FOLDER]      FOLDER is a clone that is built and committed; without it one is made
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.build import build, clone
from benchmarks.results import save

RATES = "0.001,0.0015,0.0025,0.003"


def main() -> None:
    """Find or make a finished build, and measure on it."""
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = clone(Path(folder) / "clone")
        build(root)
        subprocess.run(["git", "add", "-A"], cwd=root, check=True)
        subprocess.run(["git", "-c", "user.name=b", "-c", "user.email=b@example.org", "commit", "-qm", "build"], cwd=root, check=True)
        measure(root)


def measure(root: Path) -> None:
    """Sweep, then train, evaluate and export once by hand for comparison."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "pipeline.sweep", "-m", f"train.lr={RATES}", "--json"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    seconds = time.monotonic() - begin
    jobs = json.loads(done.stdout[done.stdout.index("[\n  {") :])
    ran = sorted({stage.partition("@")[0] for job in jobs for stage in job["stages"]})
    begin = time.monotonic()
    for stage in ("train", "evaluate", "export"):
        subprocess.run([sys.executable, "-m", "pipeline", stage], cwd=root, capture_output=True, check=True)
    alone = time.monotonic() - begin
    subprocess.run(["dvc", "checkout", "-q", "--force"], cwd=root, check=True)
    subprocess.run(["git", "checkout", "-q", "--", "build"], cwd=root, check=True)
    save(
        "versions_sweep",
        {
            "jobs": [{key: job[key] for key in ("overrides", "status", "seconds", "figures")} for job in jobs],
            "stages_that_ran": ran,
            "seconds": round(seconds, 1),
            "one_training_with_evaluation_seconds": round(alone, 1),
            "ratio_to_four": round(seconds / (4 * alone), 2),
            "ratio_less_10_s_a_job": round((seconds - 40) / (4 * alone), 2),
        },
    )


if __name__ == "__main__":
    main()
