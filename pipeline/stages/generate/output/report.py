"""Texts of a run: the plan before it, the summary file and the final table after it."""

import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipeline.formats.schema.responses import GenerateSummary, ProviderCounts
from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.ledger.accounts import latencies
from pipeline.stages.generate.ledger.records import NO_CHARGE, Charge
from pipeline.stages.generate.limits.budget import Cap
from pipeline.stages.generate.limits.money import Price, to_usd
from pipeline.stages.generate.output.progress import RunProgress
from pipeline.stages.generate.output.projection import Totals
from pipeline.stages.generate.output.timing import quantile
from pipeline.stages.generate.provider.policy import Admission
from pipeline.stages.generate.requests.survey import Survey

if TYPE_CHECKING:
    from rich.table import Table


def plan_lines(
    before: Survey, admission: Admission, provider: ProviderSection, caps: Iterable[Cap], excess: Charge
) -> list[str]:
    """Return lines that say what will be asked, and what it can cost."""
    worst = to_usd(before.worst_case(admission.price))
    lines = [
        f"generate: {before.prompts} prompts: {before.cached} answered already, {before.new} requests to send to "
        f"{provider.model}, {provider.concurrency} at a time",
        f"  at most ${worst:.4f} and {before.most_completion_tokens:,} completion tokens, at "
        f"${to_usd(admission.price.prompt * 10**6):g} and ${to_usd(admission.price.completion * 10**6):g} per million",
    ]
    if excess != NO_CHARGE:
        lines.append(
            f"  this server has billed up to {excess.tokens:,} tokens and ${to_usd(excess.pico):.6f} more than a "
            f"request could cost: with as much for each, at most ${worst + to_usd(excess.pico * before.new):.4f} and "
            f"{before.most_completion_tokens + excess.tokens * before.new:,} tokens"
        )
    for cap in caps:
        money = "no cap" if cap.section.usd is None else f"${cap.section.usd:g}"
        most = cap.section.completion_tokens
        tokens = "no cap" if most is None else f"{most:,} tokens"
        lines.append(
            f"  {cap.name} {money}, {tokens}; this clone has spent, or may have spent, ${to_usd(cap.pico):.4f} and "
            f"{cap.tokens:,} tokens of it"
        )
    if not admission.verified:
        lines.append(
            "  the server lists no endpoints: provider.max_price is used for its prices, and providers are checked by "
            "name only"
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
    """Return the summary file's content. ``price`` is the config's, for a server that lists no endpoints."""
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
            name: ProviderCounts(
                answers=provider.answers,
                completion_tokens=provider.completion_tokens,
                cost_usd=to_usd(provider.cost_pico),
            )
            for name, provider in sorted(totals.providers.items())
        },
        endpoints=None if admission is None else [endpoint.model_dump(mode="json") for endpoint in admission.admitted],
        refused=None
        if admission is None
        else [{**endpoint.model_dump(mode="json"), "why_not": reasons} for endpoint, reasons in admission.refused],
    )


def final_table(progress: RunProgress, db: sqlite3.Connection, run: int, seconds: float) -> "Table":
    """Return a table of a run: answers, failures by kind, money, speed, and each provider's latency."""
    from rich.table import Table
    from rich.text import Text  # a provider chooses its own name, so brackets in it must not be read as markup

    table = Table(title="generate: this run", title_justify="left", show_header=False)
    per_million = f" (${to_usd(progress.pico) / progress.tokens * 1e6:.3f}/M tokens)" if progress.tokens else ""
    rows: list[tuple[str, Any]] = [
        (
            "answered",
            f"{progress.answered} of {progress.total - progress.cached} asked for; "
            f"{progress.cached} were in the ledger",
        ),
        ("failed", ", ".join(f"{count} {kind}" for kind, count in sorted(progress.failed.items())) or "none"),
        ("retried", f"{progress.retried} times, of which {progress.may_pay_twice} may be paid twice"),
        ("outside the policy", progress.outside_policy),
        ("completion tokens", f"{progress.tokens:,} ({progress.tokens / max(seconds, 1e-9):,.0f}/s)"),
        (
            "money",
            f"${to_usd(progress.pico):.6f}{per_million}, and at most ${to_usd(progress.uncertain_pico):.6f} uncertain",
        ),
        ("time", f"{seconds:.1f} s, {progress.answered / max(seconds, 1e-9):.1f} answers/s"),
    ]
    rows += [
        (
            f"latency {name}",
            f"median {quantile(seconds_sorted, 0.5):.2f} s, 95 % within {quantile(seconds_sorted, 0.95):.2f} s "
            f"({len(seconds_sorted)} answers)",
        )
        for name, seconds_sorted in latencies(db, run)
    ]
    for name, value in rows:
        table.add_row(Text(name), Text(str(value)))
    return table
