"""The `generate` stage in a folder of its own, for the benchmarks."""

import json
import os
from pathlib import Path
from typing import Any

from pipeline.stages.generate.stage import Config
from tests.stages.generate.child import run_in


class Stage:
    """Runs the real stage against a server."""

    def __init__(self, folder: Path, url: str, in_flight: int, **budget: Any) -> None:
        self.folder = folder
        self.build = folder / "build" / "bench"
        self.build.mkdir(parents=True, exist_ok=True)
        os.environ["AERIE_STORE"] = str(folder / "store")
        self.config = Config.model_validate(
            {
                "sampling": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 4000, "seed": 0},
                "send_tools": False,
                "dataset_budget": budget,
                "budget": {},
                "provider": {
                    "kind": "openrouter",
                    "base_url": url,
                    "model": "m",
                    "concurrency": in_flight,
                    "timeout": {"connect": 60, "read": 120, "total": 600},
                },
            }
        )

    def prompts(self, count: int, size: int = 400) -> None:
        """Write ``count`` prompts of about ``size`` bytes each."""
        filler = "How many? " * (size // 10)
        with open(self.build / "prompts.jsonl", "w") as file:
            file.writelines(
                json.dumps(
                    {"id": f"p{number}", "messages": [{"role": "user", "content": f"{number} {filler}"}], "tools": None}
                )
                + "\n"
                for number in range(count)
            )

    def run(self) -> None:
        """Run the stage."""
        run_in(self.build, self.config)
