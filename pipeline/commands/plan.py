"""`python -m pipeline plan`: the prompts that a build would ask, and their cost. Sends nothing."""

import argparse
from typing import Any

from rich.console import Console

from pipeline.core.files.json_file import to_json
from pipeline.core.terminal import plain_table
from pipeline.project.compose import build_config
from pipeline.project.params import read_params
from pipeline.project.plan import BuildPlan, DatasetPlan, plan_build
from pipeline.project.settings import BuildConfig
from pipeline.stages.generate.config import BudgetSection
from pipeline.stages.generate.limits.money import to_usd


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
    plan = plan_build(config, options.datasets)
    if options.json:
        document = {
            "datasets": [as_json(dataset) for dataset in plan.datasets],
            "answers_per_second": plan.answers_per_second,
        }
        print(to_json(document, indent=True).decode())
    else:
        show(config, plan)


def as_json(plan: DatasetPlan) -> dict[str, Any]:
    """Return a dataset's plan as JSON."""
    estimated, worst = plan.dollars(plan.admission.price)
    prompt, completion = plan.tokens()
    return {
        "dataset": plan.name,
        "prompts": plan.survey.prompts,
        "cached": plan.survey.cached,
        "new": plan.survey.new,
        "estimated": {"prompt_tokens": prompt, "completion_tokens": completion, "usd": estimated},
        "worst_case": {
            "prompt_tokens": plan.survey.most_prompt_tokens,
            "completion_tokens": plan.survey.most_completion_tokens,
            "usd": worst,
        },
        "spent_usd": to_usd(plan.spent.pico),
        "spent_tokens": plan.spent.tokens,
        "by_provider": {
            endpoint.tag: dict(zip(("estimated_usd", "worst_case_usd"), plan.dollars(endpoint.price), strict=True))
            for endpoint in plan.admission.admitted
        },
    }


def show(config: BuildConfig, plan: BuildPlan) -> None:
    """Print the plan as a table and some lines."""
    title = f"{config.provider.model} through {config.provider.kind}; estimates, with the worst case below each"
    table = plain_table(title, ["dataset"], ["prompts", "to ask", "tokens out", "dollars", "spent", "budget"])
    for dataset in plan.datasets:
        table.add_row(*_cells(dataset, config.datasets[dataset.name].budget))
    console = Console()
    console.print(table)
    for line in _lines(config, plan):
        console.print(line, highlight=False, markup=False)


def _cells(plan: DatasetPlan, budget: BudgetSection) -> list[str]:
    estimated, worst = plan.dollars(plan.admission.price)
    caps = [
        None if budget.usd is None else f"${budget.usd:g}",
        None if budget.completion_tokens is None else f"{budget.completion_tokens:,} tokens",
    ]
    return [
        plan.name,
        f"{plan.survey.prompts:,}",
        f"{plan.survey.new:,}",
        f"{plan.tokens()[1]:,}\n{plan.survey.most_completion_tokens:,}",
        f"${estimated:.4f}\n${worst:.4f}",
        f"${to_usd(plan.spent.pico):.4f}",
        "\n".join(filter(None, caps)) or "no cap",
    ]


def _lines(config: BuildConfig, plan: BuildPlan) -> list[str]:
    lines = []
    for endpoint in plan.datasets[0].admission.admitted:
        dollars = [dataset.dollars(endpoint.price) for dataset in plan.datasets]
        estimated, worst = (sum(amounts) for amounts in zip(*dollars, strict=True))
        lines.append(f"all by {endpoint.provider} ({endpoint.quantization}): ${estimated:.4f}, at most ${worst:.4f}")
    new, rate = sum(dataset.survey.new for dataset in plan.datasets), plan.answers_per_second
    time = (
        f"about {new / rate:.0f} s at the {rate:.1f} answers/s of the last run"
        if rate
        else "time: unknown before a first run"
    )
    lines.append(f"{new} requests, {config.provider.concurrency} at a time; {time}")
    usd, tokens = config.budget.usd, config.budget.completion_tokens
    lines.append(
        f"build budget: {'no cap' if usd is None else f'${usd:g}'}, "
        f"{'no cap on' if tokens is None else f'{tokens:,}'} completion tokens"
    )
    return lines
