"""Uncertain spend settled: the router is asked what a request cost whose answer, or whose cost, never came. It costs nothing."""

import asyncio
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from pipeline.core.errors import ProviderError
from pipeline.core.http import Client, Lost, Reply
from pipeline.formats.completion.usage import read_usage
from pipeline.formats.completion.values import mapping
from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.limits.money import billed_cost
from pipeline.stages.generate.provider.classify import payload
from pipeline.stages.generate.provider.server import headers, timeouts

_AT_ONCE = 8
_OPEN = "(state='uncertain' OR (state IN ('answer', 'spoilt', 'failed', 'dropped') AND cost_pico IS NULL))"
_SETTLE = """UPDATE results SET state=CASE state WHEN 'uncertain' THEN 'failed' ELSE state END, cost_pico=?2, charge_pico=?2, prompt_tokens=coalesce(?3, prompt_tokens),
completion_tokens=coalesce(?4, completion_tokens), charge_tokens=coalesce(?4, charge_tokens), provider=coalesce(provider, ?5), model=coalesce(model, ?6) WHERE attempt=?1"""


class RouterBill(NamedTuple):
    """What the router says of a request."""

    cost_pico: int
    prompt_tokens: int | None
    completion_tokens: int | None
    provider: str | None
    model: str | None


@dataclass(slots=True)
class Settled:
    """What came of it."""

    settled: int = 0
    charged_pico: int = 0
    """What those requests were booked with before."""
    cost_pico: int = 0
    """What they cost."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Why others are as uncertain as before."""
    untraceable: int = 0
    """Requests of unknown cost whose id never came."""
    untraceable_pico: int = 0


def settle(db: sqlite3.Connection, provider: ProviderSection) -> Settled:
    """Ask for every request of unknown cost whose id is known, and book what it cost.

    Raises:
        ProviderError: the provider keeps no such account, refuses the key, or cannot be reached.
        ConfigError: the key is not set.

    """
    if provider.kind != "openrouter" or provider.base_url is None:
        raise ProviderError(
            f"provider.kind is {provider.kind}: only OpenRouter can be asked what a request cost; choose it in params.yaml, or live with the worst case"
        )
    found = Settled()
    query = f"SELECT count(*), coalesce(sum(charge_pico), 0) FROM attempts WHERE purse='real' AND generation IS NULL AND {_OPEN}"  # noqa: S608
    found.untraceable, found.untraceable_pico = db.execute(query).fetchone()
    rows = db.execute(
        f"SELECT id, generation, charge_pico FROM attempts WHERE purse='real' AND generation IS NOT NULL AND {_OPEN} ORDER BY id"  # noqa: S608
    ).fetchall()
    if rows:
        asyncio.run(_settle_all(db, provider, rows, found))
        db.execute(
            "UPDATE projections SET plan=''"
        )  # the summaries name the uncertain spend: the next generate writes them anew
    return found


async def _settle_all(
    db: sqlite3.Connection, provider: ProviderSection, rows: list[tuple[int, str, int]], found: Settled
) -> None:
    assert provider.base_url is not None
    async with Client(
        provider.base_url, headers=headers(provider), timeouts=timeouts(provider), connections=_AT_ONCE
    ) as client:
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            for (attempt, _, charged), bill in zip(
                some, await asyncio.gather(*(_ask(client, row[1]) for row in some)), strict=True
            ):
                if isinstance(bill, str):
                    found.unknown[bill] += 1
                    continue
                db.execute(_SETTLE, (attempt, *bill))
                found.settled += 1
                found.charged_pico += charged
                found.cost_pico += bill.cost_pico


async def _ask(client: Client, generation: str) -> RouterBill | str:
    """Ask what one request cost; why it is not known, where it is not."""
    try:
        reply = await client.get(f"/generation?id={quote(generation, safe='')}")
    except Lost as lost:
        raise ProviderError(
            f"the provider cannot be asked: {lost.kind}: {lost}; what was settled so far is kept: run again"
        ) from None
    if reply.status in (401, 403):
        raise ProviderError(
            f"HTTP {reply.status}: the provider refuses the key: {reply.body[:200].decode('utf-8', 'replace')}"
        )
    if reply.status == 404:
        return "not known to the provider (not billed, or not ready yet)"
    return bill_of(reply) or f"HTTP {reply.status} without a cost"


def bill_of(reply: Reply) -> RouterBill | None:
    """Read `/generation`'s answer; None when it states no cost. With a key of one's own upstream, that bill comes on top."""
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
