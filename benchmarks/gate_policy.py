"""Whether doubtful rows help or harm a drafter: acceptance length by the kind of doubt that the gate admits.

    python -m benchmarks.gate_policy --build CLONE            CLONE: a clone in which `dvc repro` ran

Each variant takes the accepted rows and the flagged rows whose reasons are all of one kind. `wrong structure` adds
accepted rows of one provider with a structural token removed, which no gate admits. All variants train for nearly the
same number of optimizer steps, with several seeds, and are evaluated on the held-out prompts.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.build import environment
from benchmarks.results import save

VARIANTS: dict[str, frozenset[str]] = {
    "accepted only": frozenset(),
    "white space": frozenset({"edge_whitespace_suspected"}),
    "count": frozenset({"count_mismatch"}),
    "white space and count": frozenset({"edge_whitespace_suspected", "count_mismatch"}),
    "wrong structure": frozenset(),
}
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Quantile of Student's distribution for a 95 % interval, by the number of seeds."""


def reasons(row: dict[str, Any]) -> set[str]:
    """Return the codes of a row's reason."""
    return {part.split(":")[0] for part in (row["reason"] or "").split(", ") if part}


def chosen(accepted: list[dict[str, Any]], rows: list[dict[str, Any]], variant: str) -> list[dict[str, Any]]:
    """Return the rows of a variant; ``accepted`` passed the audit, ``rows`` are all that were rebuilt."""
    admitted = VARIANTS[variant]
    more = [row for row in rows if row["status"] == "flag" and reasons(row) <= admitted]
    if variant == "wrong structure":
        provider = max({row["provider"] for row in accepted}, key=[row["provider"] for row in accepted].count)
        more = [broken(row) for row in accepted if row["provider"] == provider]
        accepted = [row for row in accepted if row["provider"] != provider]
    return [*accepted, *more]


def broken(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the token that closes its reasoning, as a lost special token would leave it."""
    ids, segments, lost = list(row["completion_ids"]), [], 0
    for segment in row["segments"]:
        if segment["kind"] == "think_close":
            del ids[segment["start"] - lost : segment["end"] - lost]
            lost += segment["end"] - segment["start"]
        else:
            moved = {"start": segment["start"] - lost, "end": segment["end"] - lost}
            segments.append({**segment, **moved})
    return {**row, "completion_ids": ids, "segments": segments}


def stage(root: Path, *words: str) -> None:
    """Run one stage of the build."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *words],
        cwd=root,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr[-2000:]}")


def measured(root: Path, variant: str, seeds: int, steps: int) -> dict[str, Any]:
    """Train and evaluate one variant in a copy of the build."""
    config = json.loads((root / "build/config.json").read_text())
    count = 0
    for name in config["names"]:
        folder = root / "build" / name
        table = pq.read_table(folder / "tokens.parquet")
        kept = set(pq.read_table(folder / "all_accepted.parquet").column("id").to_pylist())
        rows = table.to_pylist()
        taken = chosen([row for row in rows if row["id"] in kept], rows, variant)
        count += len(taken)
        pq.write_table(pa.Table.from_pylist(taken, schema=table.schema), folder / "accepted.parquet")
        shutil.rmtree(folder / "hidden", ignore_errors=True)
        stage(root, "extract", name)
    per_epoch = trained(root, config, seed=0, epochs=1)
    epochs = max(1, round(steps / per_epoch))
    lengths: list[float] = []
    done: list[int] = []
    for seed in range(seeds):
        done.append(trained(root, config, seed=seed, epochs=epochs))
        stage(root, "evaluate")
        lengths.append(json.loads((root / "build/drafter/eval.json").read_text())["acceptance_length"])
    half = T_95[seeds] * statistics.stdev(lengths) / seeds**0.5 if seeds > 1 else 0.0
    return {
        "rows": count,
        "steps": done[0],
        "lengths": lengths,
        "mean": round(statistics.fmean(lengths), 3),
        "half_interval_95": round(half, 3),
    }


def trained(root: Path, config: dict[str, Any], *, seed: int, epochs: int) -> int:
    """Train a drafter anew; return its optimizer steps."""
    config["train"] |= {"seed": seed, "epochs": epochs}
    (root / "build/config.json").write_text(json.dumps(config))
    shutil.rmtree(root / "build/drafter", ignore_errors=True)
    stage(root, "train")
    return int((root / "build/drafter/log.csv").read_text().strip().split("\n")[-1].split(",")[0])


def main() -> None:
    """Measure all variants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=192, help="optimizer steps of each training, nearly")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "clone"
        shutil.copytree(arguments.build, root, ignore=shutil.ignore_patterns(".venv", ".git", ".dvc"))
        for path in root.glob("build/*/accepted.parquet"):
            path.rename(path.with_name("all_accepted.parquet"))
        for variant in VARIANTS:
            results[variant] = measured(root, variant, arguments.seeds, arguments.steps)
            print(variant, results[variant], flush=True)
    save("gate_policy", {"seeds": arguments.seeds, "steps": arguments.steps, "variants": results})


if __name__ == "__main__":
    main()
