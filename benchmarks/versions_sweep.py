"""Four trainings as a sweep on a finished build: the stages that ran, and the time beside the trainings alone.

    python -m benchmarks.versions_sweep [FOLDER] [--epochs N]

FOLDER is a clone with a finished build; a copy of it is measured. Without FOLDER one is cloned and built first, in five
minutes on two cores. The shipped training takes another five; --epochs makes it shorter (the default build has 8), and
DVC's share of each job larger.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.build import build, clone, environment
from benchmarks.results import save

RATES = "0.001,0.0015,0.0025,0.003"
TRAINING = ("train", "evaluate", "export")


def main() -> None:
    """Find or make a finished build, and measure on a copy of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--epochs", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "clone"
        if options.folder is None:
            clone(root)
        else:
            shutil.copytree(options.folder, root, symlinks=True)
        if options.epochs is not None:
            params = root / "params.yaml"
            before = params.read_text()
            if "overrides: []" not in before:
                raise SystemExit(f"{options.folder}/params.yaml has its own overrides; add train.epochs there")
            params.write_text(before.replace("overrides: []", f"overrides:\n- train.epochs={options.epochs}"))
        build(root)  # apply --epochs to the copy; DVC also hashes the copy's files again here, so no job does
        subprocess.run(["git", "add", "-A"], cwd=root, check=True)
        subprocess.run(
            ["git", "-c", "user.name=b", "-c", "user.email=b@example.org", "commit", "-qm", "build", "--allow-empty"],
            cwd=root,
            check=True,
        )
        measure(root)


def measure(root: Path) -> None:
    """Run the sweep, then train, evaluate and export once without it for comparison."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "pipeline.sweep", "-m", f"train.lr={RATES}", "--json"]
    done = subprocess.run(command, cwd=root, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.monotonic() - begin
    jobs = json.loads(done.stdout[done.stdout.index("[\n  {") :])
    ran = sorted({stage.partition("@")[0] for job in jobs for stage in job["stages"]})
    begin = time.monotonic()
    for stage in TRAINING:
        subprocess.run(
            [sys.executable, "-m", "pipeline", stage],
            cwd=root,
            env=environment(),
            stdout=subprocess.DEVNULL,
            check=True,
        )
    alone = time.monotonic() - begin
    save(
        "versions_sweep",
        {
            "epochs": json.loads((root / "build/config.json").read_text())["train"]["epochs"],
            "jobs": [{key: job[key] for key in ("overrides", "status", "seconds", "figures")} for job in jobs],
            "stages_that_ran": ran,
            "only_what_training_changes_ran": set(ran) <= {"compose", *TRAINING},
            "seconds": round(seconds, 1),
            "one_training_with_evaluation_seconds": round(alone, 1),
            "beside_training_seconds_a_job": round((seconds - len(jobs) * alone) / len(jobs), 1),
            "ratio_to_four": round(seconds / (len(jobs) * alone), 2),
            "ratio_less_10_s_a_job": round((seconds - 10 * len(jobs)) / (len(jobs) * alone), 2),
        },
    )


if __name__ == "__main__":
    main()
