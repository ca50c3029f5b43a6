"""Memory at 2,000 in flight with 20 KB answers, for 10,000 and 100,000 prompts.

    python -m benchmarks.generate_memory [--small 10000] [--large 100000] [--in-flight 2000] [--size 20000]

It takes about 5 minutes on two idle cores. Every run has its own process; its memory is the peak resident size.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.generate_server import running
from benchmarks.generate_stage import Stage
from benchmarks.results import in_a_process, save


def one(folder: str, url: str, in_flight: str, prompts: str) -> None:
    """Run the stage in this process over the first ``prompts`` prompts; print its memory and time."""
    stage = Stage(Path(folder), url, int(in_flight))
    stage.prompts(int(prompts))
    started = time.perf_counter()
    stage.run()
    print(
        json.dumps(
            {
                "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "stage_seconds": time.perf_counter() - started,
            }
        )
    )


def measure(folder: str, url: str, in_flight: int, prompts: int) -> dict[str, float]:
    """Run the stage in its own process."""
    return in_a_process("benchmarks.generate_memory", folder, url, str(in_flight), str(prompts))


def main() -> None:
    """Measure both sizes, and save the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", type=int, default=10000)
    parser.add_argument("--large", type=int, default=100000)
    parser.add_argument("--in-flight", type=int, default=2000)
    parser.add_argument("--size", type=int, default=20000)
    parser.add_argument("--one", nargs=4, default=None)
    options = parser.parse_args()
    if options.one:
        one(*options.one)
        return
    with (
        tempfile.TemporaryDirectory() as first,
        tempfile.TemporaryDirectory() as second,
        running(delay=0.5, spread=0.5, size=options.size) as url,
    ):
        small = measure(first, url, options.in_flight, options.small)
        large = measure(second, url, options.in_flight, options.large)
    figures = {
        "rss_mib_small": small["rss_mib"],
        "rss_mib_large": large["rss_mib"],
        "growth_mib": large["rss_mib"] - small["rss_mib"],
    }
    times = {"small_seconds": small["stage_seconds"], "large_seconds": large["stage_seconds"]}
    save(
        "generate_memory",
        {
            "small": options.small,
            "large": options.large,
            "in_flight": options.in_flight,
            "answer_bytes": options.size,
            **figures,
            **times,
            "targets": {"rss_mib_large": 400, "growth_mib": 50},
        },
    )


if __name__ == "__main__":
    main()
