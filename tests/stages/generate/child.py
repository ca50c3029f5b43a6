"""Run the stage in its own process, so that a test can kill it.

python -m tests.stages.generate.child FOLDER URL CONCURRENCY DATASET [CONFIG]
"""

import json
import sys
from pathlib import Path

from pipeline.core.process.exit_codes import guarded
from pipeline.core.process.parent_death import follow_parent
from pipeline.stages.generate.stage import Config, run


def run_in(build: Path, config: Config) -> None:
    """Run the stage over the prompts in a dataset's folder, without a target."""
    none = build / "none"
    run(
        config,
        prompts=build / "prompts.jsonl",
        record=none,
        model=none,
        responses=build / "responses.jsonl",
        summary=build / "generate.json",
        timings=build / "timings.jsonl",
        timings_summary=build / "timings.json",
    )


def main() -> int:
    folder, url, concurrency, dataset = sys.argv[1:5]
    changes = json.loads(sys.argv[5]) if len(sys.argv) > 5 else {}
    provider = {
        "kind": "openrouter",
        "base_url": url,
        "model": "m",
        "concurrency": int(concurrency),
        **changes.get("provider", {}),
    }
    sampling = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 100, "seed": 0}
    section = {
        "sampling": sampling,
        "send_tools": False,
        "dataset_budget": changes.get("budget", {}),
        "budget": {},
        "provider": provider,
    }
    config = Config.model_validate(section)
    follow_parent()
    return guarded(lambda: run_in(Path(folder) / "build" / dataset, config))


if __name__ == "__main__":
    sys.exit(main())
