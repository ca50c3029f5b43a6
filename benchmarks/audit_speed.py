"""Token rate of the audit against a bare splintr loop over the same text, and its memory for few and many rows.

    python -m benchmarks.audit_speed [--rows 2000] [--tokens 1500]

The text comes from the standard library's sources, in random order. Every figure is measured in its own process.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.files.tables import read_rows
from pipeline.formats.schema.tokens import SCHEMA, Segment, TokenRow
from pipeline.project.file_audit import load_section
from pipeline.project.targets import open_target
from pipeline.stages.audit.inputs.context import make_context
from pipeline.stages.audit.inputs.source import Source, parquet
from pipeline.stages.audit.outputs import AuditOutputs, write_audit
from tests.parquet import write_rows


def texts(seed: int) -> Iterator[str]:
    """Yield paragraphs of real code and prose in random order, endlessly."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    parts = [
        part for file in files for part in file.read_text("utf-8", "replace").split("\n\n") if 40 < len(part) < 2000
    ]
    choice = random.Random(seed)
    while True:
        yield choice.choice(parts)


def rows(count: int, tokens: int) -> Iterator[dict[str, object]]:
    """Yield rows without faults of about ``tokens`` tokens, two thirds of them reasoning."""
    record, tokenizer = open_target("kimi_k25")
    close, end = record.role_id("think_close"), record.role_id("end")
    assert close is not None
    assert end is not None
    source = texts(0)

    def piece(length: int) -> list[int]:
        text = ""
        while len(text) < 3.5 * length:
            text += next(source) + "\n\n"
        return tokenizer.encode(text)

    for number in range(count):
        reasoning, content = piece(tokens * 2 // 3), piece(tokens // 3)
        ids = [*reasoning, close, *content, end]
        bounds = [
            ("reasoning", 0, len(reasoning)),
            ("think_close", len(reasoning), len(reasoning) + 1),
            ("content", len(reasoning) + 1, len(ids) - 1),
        ]
        segments = [Segment(*bound) for bound in [*bounds, ("end", len(ids) - 1, len(ids))]]
        prompt = [163587, *piece(50), 163601, 163606]
        yield TokenRow(
            f"r{number}", prompt, ids, "count", 0, len(ids), "stop", f"p{number % 3}", segments, [], "accept"
        ).to_row()


def encode_rate(path: Path) -> dict[str, float]:
    """Return the tokens a second of `encode_ordinary` in one thread, over the answers' text; decoding is not timed."""
    import splintr  # the bare library is the baseline

    tokenizer = splintr.Tokenizer.from_pretrained("kimi_k2")
    tokens, spent, cpu = 0, 0.0, 0.0
    for row in read_rows(path, SCHEMA):
        for segment in row["segments"]:
            ids = row["completion_ids"][segment["start"] : segment["end"]]
            text = tokenizer.decode_bytes(ids).decode("utf-8", "replace")
            start, begun = time.perf_counter(), time.process_time()
            tokens += len(tokenizer.encode_ordinary(text))
            spent, cpu = spent + time.perf_counter() - start, cpu + time.process_time() - begun
    return {"tokens": tokens, "seconds": spent, "cpu_seconds": cpu, "rate": tokens / spent}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its finished children, which other load changes little."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def audit_rate(path: Path, workers: int) -> dict[str, float]:
    """Return the answer tokens a second of a whole audit with every check on and all four files written.

    Loading the vocabulary is not timed.
    """
    context = make_context(*open_target("kimi_k25"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        start, begun = time.perf_counter(), cpu_seconds()
        summary = write_audit(
            "bench",
            Source(parquet(path)),
            context,
            load_section("default"),
            AuditOutputs.in_folder(out),
            workers=workers,
        )
        spent, cpu = time.perf_counter() - start, cpu_seconds() - begun
    tokens = summary["tokens"]["completion"]
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    peak = sum(usage.ru_maxrss for usage in used) / 1024
    return {
        "tokens": tokens,
        "seconds": spent,
        "cpu_seconds": cpu,
        "rate": tokens / spent,
        "peak_mib": peak,
        "rows": summary["rows"],
        "workers": workers,
    }


def alone(what: str, path: Path, workers: int = 1) -> dict[str, float]:
    """Run one measurement in its own process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.audit_speed",
        "--measure",
        what,
        "--file",
        str(path),
        "--workers",
        str(workers),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    """Measure and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--measure", choices=("encode", "audit"))
    parser.add_argument("--file", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    if options.measure:
        print(
            json.dumps(
                encode_rate(options.file) if options.measure == "encode" else audit_rate(options.file, options.workers)
            )
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        few, many = Path(folder) / "few.parquet", Path(folder) / "many.parquet"
        write_rows(few, SCHEMA, rows(options.rows // 4, options.tokens))
        write_rows(many, SCHEMA, rows(options.rows, options.tokens))
        encode, one, two, small = (
            alone("encode", many),
            alone("audit", many),
            alone("audit", many, 2),
            alone("audit", few),
        )
    figures = {"encode": encode, "audit": one, "audit_by_two": two, "audit_of_a_quarter": small}
    print(
        json.dumps(
            {**figures, "ratio": one["rate"] / encode["rate"], "ratio_by_two": two["rate"] / encode["rate"]}, indent=2
        )
    )


if __name__ == "__main__":
    main()
