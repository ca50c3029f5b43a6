"""Ask the router for the cost of requests whose answer or cost never came. This is free."""

import asyncio
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import orjson

from pipeline.core.errors import ProviderError
from pipeline.core.http import Client, Lost, Reply
from pipeline.formats.completion.usage import read_usage
from pipeline.formats.completion.values import mapping
from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.ledger.accounts import UnknownCost, unknown_costs, untraceable_costs
from pipeline.stages.generate.ledger.notes import forget_plans
from pipeline.stages.generate.ledger.records import RouterBill
from pipeline.stages.generate.ledger.statements import book_cost
from pipeline.stages.generate.limits.money import billed_cost
from pipeline.stages.generate.provider.classify import payload
from pipeline.stages.generate.provider.server import headers, timeouts

_AT_ONCE = 8


@dataclass(slots=True)
class SettlingReport:
    """Counts of the requests that were settled, and of those that were not."""

    settled: int = 0
    charged_pico: int = 0
    """Picodollars that were booked for the settled requests before."""
    cost_pico: int = 0
    """Picodollars that they cost."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Reasons why other requests remain uncertain."""
    untraceable: int = 0
    """Requests of unknown cost whose id never came."""
    untraceable_pico: int = 0


def settle_uncertain(db: sqlite3.Connection, provider: ProviderSection) -> SettlingReport:
    """Ask for every request of unknown cost whose id is known, and book what it cost.

    Raises:
        ProviderError: the provider has no such account, refuses the key, or cannot be reached.
        ConfigError: the key is not set.

    """
    if provider.kind != "openrouter" or provider.base_url is None:
        raise ProviderError(
            f"provider.kind is {provider.kind}: only OpenRouter can be asked what a request cost; choose it in "
            "params.yaml, or leave the worst case booked"
        )
    untraceable, untraceable_pico = untraceable_costs(db)
    report = SettlingReport(untraceable=untraceable, untraceable_pico=untraceable_pico)
    if requests := unknown_costs(db):
        asyncio.run(_settle_all(db, provider, requests, report))
        forget_plans(db)
    return report


async def _settle_all(
    db: sqlite3.Connection, provider: ProviderSection, requests: list[UnknownCost], report: SettlingReport
) -> None:
    assert provider.base_url is not None
    async with Client(
        provider.base_url, headers=headers(provider), timeouts=timeouts(provider), connections=_AT_ONCE
    ) as client:
        for start in range(0, len(requests), _AT_ONCE):
            together = requests[start : start + _AT_ONCE]
            bills = await asyncio.gather(*(_fetch_bill(client, request.generation) for request in together))
            for request, bill in zip(together, bills, strict=True):
                if isinstance(bill, str):
                    report.unknown[bill] += 1
                    continue
                book_cost(db, request.attempt, bill)
                report.settled += 1
                report.charged_pico += request.charge_pico
                report.cost_pico += bill.cost_pico


async def _fetch_bill(client: Client, generation: str) -> RouterBill | str:
    """Ask what one request cost; return the reason where the router does not know."""
    try:
        reply = await client.get(f"/generation?id={quote(generation, safe='')}")
    except Lost as lost:
        raise ProviderError(
            f"the provider cannot be asked: {lost.kind}: {lost}; the requests settled so far are kept: run again"
        ) from None
    if reply.status in (401, 403):
        raise ProviderError(
            f"HTTP {reply.status}: the provider refuses the key: {reply.body[:200].decode('utf-8', 'replace')}"
        )
    if reply.status == 404:
        return "not known to the provider (not billed, or not ready yet)"
    return bill_of(reply) or f"HTTP {reply.status} without a cost"


def bill_of(reply: Reply) -> RouterBill | None:
    """Read the answer of `/generation`; None when it states no cost.

    With the user's own key at the upstream provider, that provider's bill is added.
    """
    try:
        data = mapping(mapping(orjson.loads(payload(reply.body))).get("data"))
    except orjson.JSONDecodeError:
        return None
    usage = read_usage(
        {
            "prompt_tokens": data.get("native_tokens_prompt"),
            "completion_tokens": data.get("native_tokens_completion"),
            "reasoning_tokens": data.get("native_tokens_reasoning"),
            "cost": data.get("total_cost"),
            "is_byok": data.get("is_byok"),
            "cost_details": {"upstream_inference_cost": data.get("upstream_inference_cost")},
        }
    )
    cost = billed_cost(usage, None)
    if reply.status != 200 or cost is None:
        return None
    return RouterBill(cost, usage.prompt, usage.completion, _text(data.get("provider_name")), _text(data.get("model")))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
