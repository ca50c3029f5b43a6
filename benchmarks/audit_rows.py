"""Audit of a million short rows: time and peak memory, for a tenth of the rows and for all of them.

    python -m benchmarks.audit_rows [--rows 1000000] [--workers 1]

All checks are on. Every twentieth row has a fault, and every fiftieth has the answer of another row. Each audit runs in
its own process.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.audit_speed import texts
from benchmarks.results import in_a_process, save
from pipeline.core.files.tables import write_batches
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.project.file_audit import load_section
from pipeline.project.targets import open_target
from pipeline.stages.audit.inputs.context import make_context
from pipeline.stages.audit.inputs.source import Source, parquet
from pipeline.stages.audit.outputs import AuditOutputs, write_audit

POOL = 4096
BATCH = 4096


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield rows of about 60 tokens: lines from a pool, and a number that makes each row different."""
    record, tokenizer = open_target("kimi_k25")
    close, end = record.role_id("think_close"), record.role_id("end")
    source = texts(0)
    lines = [tokenizer.encode(next(source)[:80] + "\n") for _ in range(POOL)]
    digits = [tokenizer.encode(f" {number:03}") for number in range(1000)]
    choice = np.random.default_rng(0)
    for start in range(0, rows, BATCH):
        size = min(BATCH, rows - start)
        picked = choice.integers(0, POOL, (size, 3)).tolist()
        ids, prompts, segments = [], [], []
        for row, (one, two, three) in enumerate(picked, start):
            number = [*digits[row // 1000 % 1000], *digits[row % 1000]]
            reasoning, content = [*lines[one], *number], [*lines[two], *(number if row % 50 else digits[7])]
            ids.append([*reasoning, close, *content, end if row % 20 else 0])
            prompts.append([163587, *lines[three], *number, 163601, 163606])
            at = len(reasoning)
            bounds = [
                ("reasoning", 0, at),
                ("think_close", at, at + 1),
                ("content", at + 1, at + 1 + len(content)),
                ("end", at + 1 + len(content), len(ids[-1])),
            ]
            segments.append([{"kind": kind, "start": first, "end": last} for kind, first, last in bounds])
        lengths = [len(row) for row in ids]
        columns = {
            "id": [f"row-{row:08}" for row in range(start, start + size)],
            "prompt_ids": prompts,
            "completion_ids": ids,
            "evidence": ["count"] * size,
            "count_delta": [0] * size,
            "billed_tokens": lengths,
            "finish_reason": ["stop"] * size,
            "provider": [f"p{row % 5}" for row in range(size)],
            "segments": segments,
            "notes": [[]] * size,
            "status": ["accept"] * size,
            "reason": [None] * size,
        }
        yield pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def measure(path: Path, workers: int) -> dict[str, float]:
    """Audit a file; the peak memory is that of this process plus that of its largest child."""
    start = time.perf_counter()
    context = make_context(*open_target("kimi_k25"))
    used = [resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        summary = write_audit(
            "bench",
            Source(parquet(path)),
            context,
            load_section("default"),
            AuditOutputs.in_folder(Path(folder)),
            workers=workers,
        )
        report = (Path(folder) / "report.html").stat().st_size
    usage = [resource.getrusage(who) for who in used]
    return {
        "rows": summary["rows"],
        "accepted": summary["accepted"],
        "tokens": summary["tokens"]["completion"],
        "workers": workers,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": sum(one.ru_utime + one.ru_stime for one in usage),
        "with_vocabulary_mib": before,
        "peak_mib": sum(one.ru_maxrss for one in usage) / 1024,
        "report_bytes": report,
    }


def main() -> None:
    """Measure both sizes and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.workers)))
        return
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for rows in (options.rows // 10, options.rows):
            path = Path(folder) / f"{rows}.parquet"
            write_batches(path, SCHEMA, batches(rows))
            runs.append(in_a_process("benchmarks.audit_rows", str(path), "--workers", str(options.workers)))
    few, many = runs
    save(
        "audit_rows",
        {
            "few": few,
            "many": many,
            "bytes_a_row": (many["peak_mib"] - few["peak_mib"]) * 2**20 / (many["rows"] - few["rows"]),
        },
    )


if __name__ == "__main__":
    main()
