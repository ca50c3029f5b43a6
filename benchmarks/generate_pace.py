"""Throughput against a slow server: 2 s for each answer and 1,000 in flight, so 500 answers a second at best.

    python -m benchmarks.generate_pace [--requests 20000] [--in-flight 1000] [--delay 2.0]   2 minutes on two idle cores

A bare aiohttp loop on the same machine shows whether the machine or the engine is the limit. The stage's rate is
measured from the first request to the last answer in the ledger; reading prompts and writing responses.jsonl are
reported apart.
"""

import argparse
import sqlite3
import tempfile
import time
from pathlib import Path

import uvloop

from benchmarks.generate_cost import bare_aiohttp
from benchmarks.generate_server import running
from benchmarks.generate_stage import Stage
from benchmarks.results import save


def main() -> None:
    """Measure both, and save their shares of the ideal rate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--delay", type=float, default=2.0)
    options = parser.parse_args()
    ideal = options.in_flight / options.delay
    with running(delay=options.delay, size=4000) as url, tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        uvloop.run(bare_aiohttp(url, options.requests, options.in_flight))
        bare = options.requests / (time.perf_counter() - started)
        stage = Stage(Path(folder), url, options.in_flight)
        stage.prompts(options.requests)
        started = time.perf_counter()
        stage.run()
        whole = time.perf_counter() - started
        with sqlite3.connect(Path(folder) / "store" / "ledger.sqlite") as db:
            (seconds,) = db.execute("SELECT max(sent_at + seconds) - min(sent_at) FROM attempts").fetchone()
    engine = options.requests / seconds
    figures = {
        "ideal_per_second": ideal,
        "bare_aiohttp_per_second": bare,
        "engine_per_second": engine,
        "whole_stage_seconds": whole,
    }
    shares = {"engine_share_of_ideal": engine / ideal, "engine_share_of_bare_loop": engine / bare}
    limit = (
        "the server's pace" if bare >= 0.97 * ideal else "this machine: the bare loop does not reach the ideal either"
    )
    save(
        "generate_pace",
        {**vars(options), **figures, **shares, "limit": limit, "targets": {"share_of_whichever_is_the_limit": 0.97}},
    )


if __name__ == "__main__":
    main()
