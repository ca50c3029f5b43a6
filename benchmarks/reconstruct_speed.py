"""Speed of the whole reconstruct stage beside bare encoding, on realistic rows of about 2,000 tokens.

    python -m benchmarks.reconstruct_speed [--rows 22000]

Each figure is measured in its own process, so that no cache is warm; the best of `--repeat` runs counts. The default
rows hold 43 million tokens.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.results import save

TOKENS_A_ROW = 2000
BYTES_A_TOKEN = 4
BATCH_TEXTS = 2000
"""Texts in one call of tiktoken: the ids of all texts would take billions of bytes of Python integers."""
PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""Split pattern of Kimi-K2.5, as published with the model; the benchmark checks that tiktoken then equals splintr."""


def texts(rows: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield reasoning and content of each row from the standard library's sources; no two rows are equal."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    pieces = [path.read_text("utf-8", "ignore") for path in sorted(folder.glob("*.py"))[:160]]
    joined = "".join(pieces)
    rng = Random(seed)
    size = TOKENS_A_ROW * BYTES_A_TOKEN
    for number in range(rows):
        start, cut = rng.randrange(len(joined) - size), rng.randrange(size // 4, size)
        part = joined[start : start + size]
        yield f"PackedRow {number}. {part[:cut]}", part[cut:]


def write_rows(path: Path, rows: int) -> int:
    """Write the bodies with the right bill; return the bytes of their texts."""
    from pipeline.answers.segmented_ids import ID_BYTES
    from pipeline.project.targets import open_target

    _, tokenizer = open_target("kimi_k25")
    total = 0
    with open(path, "w", encoding="utf-8") as file:
        for number, (reasoning, content) in enumerate(texts(rows)):
            total += len(reasoning.encode()) + len(content.encode())
            billed = (len(tokenizer.encode_flat(reasoning)) + len(tokenizer.encode_flat(content))) // ID_BYTES + 2
            message = {"role": "assistant", "content": content, "reasoning": reasoning, "refusal": None}
            choice = {
                "index": 0,
                "finish_reason": "stop",
                "native_finish_reason": "stop",
                "logprobs": None,
                "message": message,
            }
            body = {
                "id": f"gen-{number}",
                "provider": "P",
                "model": "m",
                "choices": [choice],
                "usage": {"completion_tokens": billed},
            }
            file.write(json.dumps({"id": f"row-{number}", "response": body}, ensure_ascii=False) + "\n")
    return total


def stage(path: Path) -> float:
    """Return the seconds of the whole stage, tokenizer loaded: read, learn habits, parse, assemble, write."""
    from pipeline.answers.rows import RowMaker
    from pipeline.project.targets import open_target
    from pipeline.stages.reconstruct.batches import workers_for
    from pipeline.stages.reconstruct.sources import file_lines, file_to_job
    from pipeline.stages.reconstruct.stage import rebuild_file

    maker = RowMaker(*open_target("kimi_k25"), send_tools=True)
    start = time.perf_counter()
    rebuild_file(
        partial(file_lines, path),
        file_to_job,
        maker,
        path.with_suffix(".parquet"),
        workers_for(path.stat().st_size, None),
    )
    return time.perf_counter() - start


def _texts_of(path: Path) -> list[str]:
    with open(path, encoding="utf-8") as file:
        messages = [json.loads(line)["response"]["choices"][0]["message"] for line in file]
    return [text for message in messages for text in (message["reasoning"], message["content"])]


def splintr_loop(path: Path) -> float:
    """Return the seconds of a loop over `encode_ordinary`."""
    import splintr

    encode = splintr.Tokenizer.from_pretrained("kimi_k2").encode_ordinary
    listed = _texts_of(path)
    start = time.perf_counter()
    for text in listed:
        encode(text)
    return time.perf_counter() - start


def tiktoken_batch(path: Path) -> float:
    """Return the seconds of tiktoken's `encode_ordinary_batch` in two threads, over the same ranks."""
    import splintr
    import tiktoken

    ours = splintr.Tokenizer.from_pretrained("kimi_k2")
    ranks = {bytes(ours.decode_bytes([token])): token for token in range(163584)}
    theirs = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    listed = _texts_of(path)
    assert theirs.encode_ordinary(listed[0]) == list(ours.encode_ordinary(listed[0]))
    start = time.perf_counter()
    for first in range(0, len(listed), BATCH_TEXTS):
        theirs.encode_ordinary_batch(listed[first : first + BATCH_TEXTS], num_threads=2)
    return time.perf_counter() - start


MEASURED: dict[str, Callable[[Path], float]] = {
    "splintr_loop": splintr_loop,
    "tiktoken_batch": tiktoken_batch,
    "stage": stage,
}


def measure(name: str, path: Path, repeat: int) -> dict[str, float]:
    """Run a measurement ``repeat`` times, each in its own process; return the best seconds and the largest memory."""
    reports = []
    for _ in range(repeat):
        start = time.perf_counter()
        out = subprocess.run(
            [sys.executable, "-m", "benchmarks.reconstruct_speed", "--only", name, "--path", str(path)],
            check=True,
            capture_output=True,
        )
        reports.append({**json.loads(out.stdout.splitlines()[-1]), "process": time.perf_counter() - start})
    best = min(reports, key=lambda report: float(report["seconds"]))
    return {
        "seconds": round(best["seconds"], 3),
        "process_seconds": round(best["process"], 3),
        "cpu_seconds_of_the_process": round(min(report["cpu"] for report in reports), 3),
        "peak_mib": round(max(report["peak_mib"] for report in reports), 1),
    }


def _peak_mib() -> float:
    """Return the peak memory of this process or of its largest child.

    The own peak is VmHWM, since `ru_maxrss` would start with the peak of the parent process.
    """
    own = next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def only(name: str, path: Path) -> None:
    """Do one measurement in this process, and print it."""
    seconds, peak = MEASURED[name](path), _peak_mib()
    print(json.dumps({"seconds": seconds, "peak_mib": peak, "cpu": sum(os.times()[:4])}))


def main() -> None:
    """Measure everything and save the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=22_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=sorted(MEASURED))
    parser.add_argument("--path", type=Path)
    arguments = parser.parse_args()
    if arguments.only:
        only(arguments.only, arguments.path)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "responses.jsonl"
        size = write_rows(path, arguments.rows)
        figures: dict[str, Any] = {"rows": arguments.rows, "text_mb": round(size / 1e6, 1)}
        for name in MEASURED:
            figures[name] = measure(name, path, arguments.repeat)
            figures[name]["mb_per_s"] = round(size / 1e6 / figures[name]["seconds"], 1)
        quarter = path.with_name("quarter.jsonl")
        with open(path, "rb") as whole, open(quarter, "wb") as part:
            part.writelines(islice(whole, arguments.rows // 4))
        figures["stage_on_a_quarter"] = measure("stage", quarter, arguments.repeat)
    figures["stage_to_splintr_loop"] = round(figures["stage"]["mb_per_s"] / figures["splintr_loop"]["mb_per_s"], 2)
    figures["stage_to_tiktoken_batch"] = round(figures["stage"]["mb_per_s"] / figures["tiktoken_batch"]["mb_per_s"], 2)
    save("reconstruct_speed", figures)


if __name__ == "__main__":
    main()
