"""What a run says before and after: the plan, the summary file, the table for people."""

import sqlite3
from typing import TYPE_CHECKING, Any

from pipeline.formats.schema.responses import GenerateSummary, ProviderCounts
from pipeline.stages.generate.config import BudgetSection, ProviderSection
from pipeline.stages.generate.ledger.ledger import Spending, latencies
from pipeline.stages.generate.limits.money import Price, to_usd
from pipeline.stages.generate.output.progress import Watch
from pipeline.stages.generate.output.projection import Totals
from pipeline.stages.generate.output.timing import quantile
from pipeline.stages.generate.provider.policy import Admission
from pipeline.stages.generate.requests.survey import Survey

if TYPE_CHECKING:
    from rich.table import Table


def plan_lines(
    before: Survey,
    admission: Admission,
    provider: ProviderSection,
    dataset: BudgetSection,
    build: BudgetSection,
    spent: tuple[Spending, Spending],
) -> list[str]:
    """Say what will be asked, and what it can cost, before it is."""
    worst = to_usd(before.worst_case(admission.price))
    lines = [
        f"generate: {before.prompts} prompts: {before.cached} answered already, {before.new} requests to send to {provider.model}, {provider.concurrency} at a time",
        f"  at most ${worst:.4f} and {before.most_completion_tokens:,} completion tokens, at ${to_usd(admission.price.prompt * 10**6):g} and ${to_usd(admission.price.completion * 10**6):g} per million",
    ]
    for name, section, counted in (("dataset", dataset, spent[0]), ("build", build, spent[1])):
        money = "no cap" if section.usd is None else f"${section.usd:g}"
        tokens = "no cap" if section.completion_tokens is None else f"{section.completion_tokens:,} tokens"
        lines.append(
            f"  {name} budget {money}, {tokens}; this clone has spent or may have spent ${to_usd(counted.pico):.4f}, {counted.tokens:,} tokens of it"
        )
    if not admission.verified:
        lines.append(
            "  the server lists no endpoints: provider.max_price stands for its prices, and who answers is checked by name alone"
        )
    elif admission.admitted:
        lines.append(
            "  admitted: "
            + ", ".join(f"{endpoint.provider} ({endpoint.quantization})" for endpoint in admission.admitted)
        )
    return lines


def summary_of(
    totals: Totals, admission: Admission | None, remaining: Survey | None, price: Price | None
) -> GenerateSummary:
    """Give the summary file's content. ``price`` is the config's, for a server that lists none."""
    price = admission.price if admission is not None else price
    return GenerateSummary(
        prompts=totals.prompts,
        answered=totals.answered,
        outside_policy=totals.outside_policy,
        failed={kind: totals.failed[kind] for kind in sorted(totals.failed)},
        not_asked=totals.not_asked,
        requests=totals.requests,
        retried=totals.retried,
        prompt_tokens=totals.prompt_tokens,
        completion_tokens=totals.completion_tokens,
        cost_usd=to_usd(totals.cost_pico),
        uncertain_requests=totals.uncertain,
        uncertain_usd=to_usd(totals.uncertain_pico),
        usd_per_million_tokens=round(to_usd(totals.cost_pico) / totals.completion_tokens * 1e6, 6)
        if totals.completion_tokens
        else None,
        remaining_usd=0.0 if remaining is None else None if price is None else to_usd(remaining.worst_case(price)),
        by_provider={
            name: ProviderCounts(answers=counts[0], completion_tokens=counts[1], cost_usd=to_usd(counts[2]))
            for name, counts in sorted(totals.providers.items())
        },
        endpoints=None if admission is None else [endpoint.model_dump(mode="json") for endpoint in admission.admitted],
        refused=None
        if admission is None
        else [{**endpoint.model_dump(mode="json"), "why_not": reasons} for endpoint, reasons in admission.refused],
    )


def final_table(watch: Watch, db: sqlite3.Connection, run: int, seconds: float) -> "Table":
    """Sum a run up for people: what was done, what failed and why, money, speed, and each provider's latency."""
    from rich.table import Table
    from rich.text import Text  # a provider's name is its own choice: brackets in it are no markup

    table = Table(title="generate: this run", title_justify="left", show_header=False)
    per_million = f" (${to_usd(watch.pico) / watch.tokens * 1e6:.3f}/M tokens)" if watch.tokens else ""
    rows: list[tuple[str, Any]] = [
        ("answered", f"{watch.answered} of {watch.total - watch.cached} asked for; {watch.cached} were in the ledger"),
        ("failed", ", ".join(f"{count} {kind}" for kind, count in sorted(watch.failed.items())) or "none"),
        ("retried", f"{watch.retried} times, of which {watch.may_pay_twice} may be paid twice"),
        ("outside the policy", watch.outside),
        ("completion tokens", f"{watch.tokens:,} ({watch.tokens / max(seconds, 1e-9):,.0f}/s)"),
        ("money", f"${to_usd(watch.pico):.6f}{per_million}, and at most ${to_usd(watch.uncertain_pico):.6f} uncertain"),
        ("time", f"{seconds:.1f} s, {watch.answered / max(seconds, 1e-9):.1f} answers/s"),
    ]
    rows += [
        (
            f"latency {name}",
            f"median {quantile(found, 0.5):.2f} s, 95 % within {quantile(found, 0.95):.2f} s ({len(found)} answers)",
        )
        for name, found in latencies(db, run)
    ]
    for name, value in rows:
        table.add_row(Text(name), Text(str(value)))
    return table
