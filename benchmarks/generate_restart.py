"""A restart over 100,000 answered prompts: seconds until the first request, and of a rerun with nothing to do.

    python -m benchmarks.generate_restart [--rows 100000] [--size 4000]          about 2 minutes on two quiet cores

The ledger is filled from a responses.jsonl, as after a `dvc pull`; each timed run is a process of its own, start
included.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.generate_server import Habits, answer, running
from benchmarks.generate_stage import Stage
from benchmarks.results import save
from pipeline.stages.generate.ledger.records import LatestAttempt
from pipeline.stages.generate.output.projection import line
from pipeline.stages.generate.requests.prompt_source import read_prompts
from pipeline.stages.generate.requests.request import RequestBuilder

TARGETS = {"rerun_with_nothing_to_do_seconds": 3, "restart_to_first_request_seconds": 5}


def fill(stage: Stage, rows: int, size: int) -> None:
    """Write prompts, and a responses.jsonl that answers all of them."""
    stage.prompts(rows)
    config = stage.config
    builder = RequestBuilder(config.sampling, config.provider, send_tools=config.send_tools, identity=None)
    found = LatestAttempt(
        id=1,
        state="answer",
        kind="ok",
        message=None,
        provider="Alpha",
        model="m",
        policy=None,
        body=answer(Habits(0, 0, size)),
        requests=1,
        cost_pico=20_000_000,
        uncertain=0,
        uncertain_pico=0,
        prompt_tokens=10,
        completion_tokens=5,
    )
    with open(stage.build / "responses.jsonl", "wb") as file:
        file.writelines(
            line(prompt.id, builder.key(prompt.messages, prompt.tools), found) + b"\n"
            for prompt in read_prompts(stage.build / "prompts.jsonl")
        )


def timed(folder: str, url: str) -> tuple[float, float]:
    """Run the stage in a process of its own; give the moment of its start and the seconds that it took."""
    started = time.time()
    subprocess.run(
        [sys.executable, "-m", "benchmarks.generate_restart", "--one", folder, url],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return started, time.time() - started


def main() -> None:
    """Fill, run three times, keep the seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100000)
    parser.add_argument("--size", type=int, default=4000)
    parser.add_argument("--one", nargs=2, default=None)
    options = parser.parse_args()
    if options.one:
        Stage(Path(options.one[0]), options.one[1], 64).run()
        return
    with tempfile.TemporaryDirectory() as folder:
        billed = Path(folder) / "billed"
        with running(delay=0.0, ledger=billed) as url:
            stage = Stage(Path(folder), url, 64)
            fill(stage, options.rows, options.size)
            _, restored = timed(folder, url)
            _, nothing = timed(folder, url)
            stage.prompts(options.rows + 10)
            started, whole = timed(folder, url)
        lines = billed.read_text().splitlines()
        begun = float(lines[0].split()[2]) - started
    figures = {
        "fill_from_file_seconds": restored,
        "rerun_with_nothing_to_do_seconds": nothing,
        "restart_to_first_request_seconds": begun,
    }
    save(
        "generate_restart",
        {
            "rows": options.rows,
            "answer_bytes": options.size,
            **figures,
            "restart_whole_seconds": whole,
            "requests": len(lines),
            "targets": TARGETS,
        },
    )


if __name__ == "__main__":
    main()
