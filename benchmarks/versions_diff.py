"""Seconds and peak memory of `python -m pipeline diff` on two versions of 100,000 rows, 1 % of them changed."""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.results import save
from pipeline.core.files.json_file import write_json
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.project.versions.lockfile import file_digest
from pipeline.project.versions.merge_driver import render
from tests.parquet import write_rows

ROWS, CHANGED = 100_000, 1_000
PROMPT, COMPLETION = 100, 400
ROOT = Path(__file__).resolve().parent.parent


def rows(seed: int) -> Iterator[dict[str, Any]]:
    """Yield rows with random ids; seeds 0 and 1 differ in every hundredth completion."""
    for n in range(ROWS):
        draw = random.Random(f"{n}-{seed if n % (ROWS // CHANGED) == 0 else 0}")
        yield {
            "id": f"row-{n}",
            "prompt_ids": [n % 1000] * PROMPT,
            "completion_ids": list(memoryview(draw.randbytes(COMPLETION * 2)).cast("H")),
            "evidence": "count",
            "count_delta": 0,
            "billed_tokens": COMPLETION,
            "finish_reason": "stop",
            "provider": "north",
            "segments": [
                {"kind": kind, "start": k, "end": k + 1}
                for k, kind in enumerate(("reasoning", "think_close", "content", "end"))
            ],
            "notes": [],
            "status": "accept",
            "reason": None,
        }


def commit(root: Path, tokens: Path) -> None:
    """Commit a version whose dvc.lock names these tokens, and put them into the cache."""
    md5 = file_digest(tokens.read_bytes())
    cached = root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]
    cached.parent.mkdir(parents=True, exist_ok=True)
    tokens.rename(cached)
    write_json(root / "build/config.json", {"names": ["large"], "datasets": {"large": {}}})
    write_json(root / "build/code.json", {})
    entry = {
        "cmd": "python -m pipeline reconstruct large",
        "outs": [{"path": "build/large/tokens.parquet", "hash": "md5", "md5": md5, "size": 1}],
    }
    (root / "dvc.lock").write_bytes(render({"reconstruct@large": entry}))
    for command in (["add", "-A"], ["-c", "user.name=b", "-c", "user.email=b@example.org", "commit", "-qm", "version"]):
        subprocess.run(["git", *command], cwd=root, check=True)


def main() -> None:
    """Make both versions, compare them three times, save the figures."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for command in (["git", "init", "-q"], [sys.executable, "-m", "dvc", "init", "-q"]):
            subprocess.run(command, cwd=root, check=True)
        for seed in (0, 1):
            tokens = root / "tokens.new"
            write_rows(tokens, SCHEMA, rows(seed))
            commit(root, tokens)
        seconds = []
        for _ in range(3):
            begin = time.monotonic()
            command = [sys.executable, "-m", "pipeline", "diff", "HEAD~1", "HEAD", "--format", "json"]
            done = subprocess.run(
                command, cwd=root, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=True
            )
            seconds.append(round(time.monotonic() - begin, 2))
        dataset = json.loads(done.stdout)["datasets"][0]
        assert dataset["rows"]["changed"] == CHANGED, dataset
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    save(
        "versions_diff",
        {
            "rows": ROWS,
            "changed": CHANGED,
            "tokens_per_row": PROMPT + COMPLETION,
            "seconds": seconds,
            "peak_gib": round(peak, 2),
        },
    )


if __name__ == "__main__":
    main()
