"""`python -m pipeline plan`: what a build would ask and what it can cost, before it does. Sends no prompt, costs nothing."""

import argparse
import sqlite3
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.core.errors import ConfigError
from pipeline.core.files import scratch_folder, to_json
from pipeline.core.home import store_folder
from pipeline.core.terminal import plain_table
from pipeline.formats.build_folder import BUILD
from pipeline.project.compose import build_config
from pipeline.project.endpoints import listed
from pipeline.project.params import read_params
from pipeline.project.settings import BuildConfig
from pipeline.stages.generate.ledger import ledger
from pipeline.stages.generate.ledger.restore import keys_of
from pipeline.stages.generate.limits.money import Price, to_usd
from pipeline.stages.generate.provider.policy import Admission
from pipeline.stages.generate.provider.server import admission_of, identity
from pipeline.stages.generate.requests.request import Asker
from pipeline.stages.generate.requests.survey import Survey, survey
from pipeline.stages.prompts.stage import Config as PromptsConfig
from pipeline.stages.prompts.stage import run as make_prompts

MODEL = Path("build/target/model")

_BYTES_A_TOKEN = 4
"""Bytes of JSON that a prompt token stands for, as a rule of thumb; only estimates use it, never a cap."""


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """What one dataset would ask."""

    name: str
    found: Survey
    admission: Admission
    spent: ledger.Spending
    usual_tokens: float | None
    """Completion tokens of its usual answer, as observed; None before any."""
    max_tokens: int

    def tokens(self) -> tuple[int, int]:
        """Prompt and completion tokens, as estimated."""
        usual = self.max_tokens if self.usual_tokens is None else self.usual_tokens
        return self.found.prompt_bytes // _BYTES_A_TOKEN, round(self.found.new * usual)

    def dollars(self, price: Price) -> tuple[float, float]:
        """Estimated and worst-case dollars at a price."""
        prompt, completion = self.tokens()
        return to_usd(self.found.new * price.request + prompt * price.prompt + completion * price.completion), to_usd(
            self.found.worst_case(price)
        )


def plan_dataset(
    config: BuildConfig, name: str, document: Any, db: sqlite3.Connection | None, folder: Path
) -> DatasetPlan:
    """Survey one dataset as the configuration stands now, whether or not the build is up to date.

    Raises:
        AerieError: its prompts cannot be read, or no endpoint is admitted.

    """
    section = config.datasets[name]
    prompts = folder / f"{name}.jsonl"
    make_prompts(PromptsConfig(prompts=section.prompts, digest=None), prompts=prompts, summary=folder / f"{name}.json")
    trained = config.provider.kind != "embedded" or MODEL.exists()
    asker = Asker(
        section.sampling,
        config.provider,
        send_tools=section.send_tools,
        identity=identity(config.provider, MODEL) if trained else None,
    )
    purse = "pretend" if config.provider.kind == "embedded" else "real"
    known, most = db if trained else None, section.sampling.max_tokens
    found = survey(prompts, asker, known, most)
    if (
        found.new and (pulled := BUILD / name / "responses.jsonl").exists()
    ):  # generate takes another clone's answers out of it
        found = survey(prompts, asker, known, most, elsewhere=keys_of(pulled))
    admission = admission_of(
        config.provider, document, needs=asker.parameters(), max_tokens=section.sampling.max_tokens
    )
    spent = ledger.spending(db, purse, name) if db is not None else ledger.Spending(0, 0)
    return DatasetPlan(
        name,
        found,
        admission,
        spent,
        None if db is None else ledger.usual_tokens(db, name),
        section.sampling.max_tokens,
    )


def main(argv: list[str]) -> None:
    """Print what each dataset would ask.

    Raises:
        AerieError: the configuration or a prompt file is wrong, or the server cannot be asked for its prices.

    """
    parser = argparse.ArgumentParser(prog="python -m pipeline plan", description=__doc__)
    parser.add_argument("datasets", nargs="*", help="names from params.yaml; all by default")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(argv)
    config = build_config(read_params())
    names = options.datasets or config.names
    if unknown := sorted(set(names) - set(config.names)):
        raise ConfigError(f"no dataset {unknown} in params.yaml; there are {config.names}")
    store = store_folder()
    document = listed(config.provider)
    with (
        ledger.opened(store, readonly=True) if (store / ledger.FILE).exists() else nullcontext() as db,
        scratch_folder() as folder,
    ):
        plans = [plan_dataset(config, name, document, db, folder) for name in names]
        rate = None if db is None else ledger.usual_rate(db, config.provider.model)
    if options.json:
        print(
            to_json({"datasets": [as_json(plan) for plan in plans], "answers_per_second": rate}, indent=True).decode()
        )
    else:
        show(config, plans, rate)


def as_json(plan: DatasetPlan) -> dict[str, Any]:
    """Give a plan as JSON."""
    estimated, worst = plan.dollars(plan.admission.price)
    prompt, completion = plan.tokens()
    return {
        "dataset": plan.name,
        "prompts": plan.found.prompts,
        "cached": plan.found.cached,
        "new": plan.found.new,
        "estimated": {"prompt_tokens": prompt, "completion_tokens": completion, "usd": estimated},
        "worst_case": {
            "prompt_tokens": plan.found.most_prompt_tokens,
            "completion_tokens": plan.found.most_completion_tokens,
            "usd": worst,
        },
        "spent_usd": to_usd(plan.spent.pico),
        "spent_tokens": plan.spent.tokens,
        "by_provider": {
            endpoint.tag: dict(zip(("estimated_usd", "worst_case_usd"), plan.dollars(endpoint.price), strict=True))
            for endpoint in plan.admission.admitted
        },
    }


def show(config: BuildConfig, plans: list[DatasetPlan], rate: float | None) -> None:
    """Print plans for people."""
    title = f"{config.provider.model} through {config.provider.kind}; estimates, and below them the most that it can be"
    table = plain_table(title, ["dataset"], ["prompts", "to ask", "tokens out", "dollars", "spent", "budget"])
    for plan in plans:
        estimated, worst = plan.dollars(plan.admission.price)
        budget = config.datasets[plan.name].budget
        caps = [
            None if budget.usd is None else f"${budget.usd:g}",
            None if budget.completion_tokens is None else f"{budget.completion_tokens:,} tokens",
        ]
        limit = "\n".join(filter(None, caps)) or "no cap"
        tokens = f"{plan.tokens()[1]:,}\n{plan.found.most_completion_tokens:,}"
        spent = f"${to_usd(plan.spent.pico):.4f}"
        table.add_row(
            plan.name,
            f"{plan.found.prompts:,}",
            f"{plan.found.new:,}",
            tokens,
            f"${estimated:.4f}\n${worst:.4f}",
            spent,
            limit,
        )
    console = Console()
    console.print(table)
    for endpoint in plans[0].admission.admitted:
        sums = [sum(parts) for parts in zip(*(plan.dollars(endpoint.price) for plan in plans), strict=True)]
        console.print(
            f"all by {endpoint.provider} ({endpoint.quantization}): ${sums[0]:.4f}, at most ${sums[1]:.4f}",
            highlight=False,
            markup=False,
        )
    new = sum(plan.found.new for plan in plans)
    time = (
        f"about {new / rate:.0f} s at the {rate:.1f} answers/s of the last run"
        if rate
        else "time: unknown before a first run"
    )
    console.print(f"{new} requests, {config.provider.concurrency} at a time; {time}", highlight=False, markup=False)
    whole = config.budget
    console.print(
        f"build budget: {'no cap' if whole.usd is None else f'${whole.usd:g}'}, {'no cap on' if whole.completion_tokens is None else f'{whole.completion_tokens:,}'} completion tokens",
        highlight=False,
        markup=False,
    )
