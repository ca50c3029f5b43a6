"""Randomized runs against a budget, judged by the server's own account.

Prices, lengths, failures and concurrency are random, and several runs share one ledger.

python -m benchmarks.generate_budget [--runs 500] [--seed 0]          about 5 minutes on two quiet cores
"""

import argparse
import contextlib
import io
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.results import save
from pipeline.core.errors import AerieError
from pipeline.stages.generate.stage import Config
from tests.stages.generate.chat_server import ENDPOINT, ChatServer, ScriptedReply, completion, error
from tests.stages.generate.child import run_in


class Scene:
    """One random server with one random budget."""

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance = chance
        self.folder = folder
        self.prices = [(chance.randint(0, 50) / 1e7, chance.randint(1, 90) / 1e7) for _ in range(chance.randint(1, 3))]
        self.max_tokens = chance.choice([16, 100, 1000])
        self.failing = chance.choice([0.0, 0.1, 0.5])
        self.billed_tokens = 0
        worst = self.max_tokens * max(price for _, price in self.prices)
        self.cap_usd = None if chance.random() < 0.2 else round(worst * chance.uniform(0.5, 30), 9)
        self.cap_tokens = (
            None
            if self.cap_usd is not None and chance.random() < 0.5
            else int(self.max_tokens * chance.uniform(0.5, 30))
        )

    def endpoints(self) -> list[dict[str, Any]]:
        """List the random prices, one provider each."""
        return [
            {
                **ENDPOINT,
                "provider_name": f"P{number}",
                "tag": f"p{number}",
                "pricing": {"prompt": f"{prompt:.10f}", "completion": f"{completion_price:.10f}"},
            }
            for number, (prompt, completion_price) in enumerate(self.prices)
        ]

    def script(self, text: str, _nth: int) -> ScriptedReply:
        """Answer at random: usually with the right bill, sometimes with a failure that is billed nevertheless."""
        chance = self.chance
        number = chance.randrange(len(self.prices))
        prompt_tokens, tokens = len(text), chance.randint(1, self.max_tokens)
        cost = prompt_tokens * self.prices[number][0] + tokens * self.prices[number][1]
        body = json.dumps(
            completion(provider=f"P{number}", prompt_tokens=prompt_tokens, tokens=tokens, cost=cost)
        ).encode()
        if chance.random() >= self.failing:
            self.billed_tokens += tokens
            return ScriptedReply(body=body, billed=cost, delay=chance.random() * 0.01)
        free, billed = chance.choice(
            [
                (error(429), 0),
                (error(503), 0),
                (error(400), 0),
                (ScriptedReply(drop=True), 1),
                (ScriptedReply(body=body, cut=30), 1),
                (ScriptedReply(500, body=b"{}"), 1),
            ]
        )
        self.billed_tokens += tokens * billed
        free.billed = cost * billed
        return free

    def config(self, url: str) -> Config:
        """Configure the stage for this scene."""
        retry = {"base": 0.001, "max_wait": 0.01, "breaker": 1000, "patience": 20, "repay": self.chance.randint(0, 2)}
        provider = {
            "kind": "openrouter",
            "base_url": url,
            "model": "m",
            "concurrency": self.chance.choice([1, 3, 16, 64]),
            "retry": retry,
        }
        sampling = {"temperature": 1.0, "top_p": 1.0, "max_tokens": self.max_tokens, "seed": 0}
        budget = {"usd": self.cap_usd, "completion_tokens": self.cap_tokens}
        caps = (budget, {}) if self.chance.random() < 0.5 else ({}, budget)
        return Config.model_validate(
            {
                "sampling": sampling,
                "send_tools": False,
                "dataset_budget": caps[0],
                "budget": caps[1],
                "provider": provider,
            }
        )

    def play(self) -> dict[str, Any]:
        """Run the stage one to three times with growing prompts; give the server's account and the caps."""
        build = self.folder / "build" / "some"
        build.mkdir(parents=True)
        os.environ["AERIE_STORE"] = str(self.folder / "store")
        with ChatServer(self.script, endpoints=self.endpoints()) as server:
            for turn in range(self.chance.randint(1, 3)):
                rows = [
                    {"id": f"{turn}-{number}", "messages": [{"role": "user", "content": f"{turn} {number}"}]}
                    for number in range(self.chance.randint(1, 40))
                ]
                (build / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
                with contextlib.suppress(AerieError), contextlib.redirect_stderr(io.StringIO()):
                    run_in(build, self.config(server.url))
            usd = server.billed
        passed = (self.cap_usd is not None and usd > self.cap_usd + 1e-12) or (
            self.cap_tokens is not None and self.billed_tokens > self.cap_tokens
        )
        return {
            "passed": passed,
            "requests": len(server.asked),
            "usd": usd,
            "share": usd / self.cap_usd if self.cap_usd else None,
        }


def play(seed: int) -> dict[str, Any]:
    """Play one scene in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return Scene(random.Random(seed), Path(folder)).play()


def main() -> None:
    """Play all scenes, and keep how often a cap was passed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.monotonic()
    found = [play(options.seed * 1_000_000 + number) for number in range(options.runs)]
    shares = sorted(one["share"] for one in found if one["share"] is not None)
    figures = {
        "budget_passed": sum(one["passed"] for one in found),
        "requests": sum(one["requests"] for one in found),
        "highest_share_of_a_dollar_cap": shares[-1],
    }
    took = round(time.monotonic() - started, 1)
    save(
        "generate_budget",
        {"runs": options.runs, "seed": options.seed, **figures, "targets": {"budget_passed": 0}, "seconds": took},
    )


if __name__ == "__main__":
    main()
