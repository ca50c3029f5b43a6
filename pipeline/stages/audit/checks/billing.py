"""Checks that compare the bill with the rebuilt ids."""

from collections.abc import Iterator

from pipeline.stages.audit.checks.check import Complaint
from pipeline.stages.audit.config import CheckSection, CostSection, DifferenceSection
from pipeline.stages.audit.inputs.batch import Batch


def _too_far(difference: float, of: float, settings: DifferenceSection) -> bool:
    return abs(difference) > settings.max_tokens and abs(difference) > settings.max_rate * of


def count_difference(batch: Batch, settings: DifferenceSection) -> Iterator[Complaint]:
    for row, (delta, billed) in enumerate(zip(batch.column("count_delta"), batch.column("billed_tokens"), strict=True)):
        if delta is not None and _too_far(delta, billed or 0, settings):
            yield Complaint(
                row, None, f"billed {billed} tokens, {abs(delta)} {'more' if delta > 0 else 'fewer'} than were rebuilt"
            )


def prompt_count(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    evidence, deltas = batch.column("prompt_evidence"), batch.column("prompt_delta")
    for row, (known, delta) in enumerate(zip(evidence, deltas, strict=True)):
        if known == "text" and delta:
            yield Complaint(
                row,
                None,
                f"{abs(delta)} prompt tokens {'more' if delta > 0 else 'fewer'} were billed than were rendered",
            )


def reasoning_count(batch: Batch, settings: DifferenceSection) -> Iterator[Complaint]:
    close = batch.hits(batch.context.role("think_close")).first.tolist()
    for row, answer in enumerate(batch.answers):
        if (
            answer.reasoning_tokens
            and close[row] >= 0
            and _too_far(answer.reasoning_tokens - close[row], close[row], settings)
        ):
            yield Complaint(
                row,
                close[row],
                f"{answer.reasoning_tokens} reasoning tokens reported, {close[row]} come before the think-close token",
            )


def cost(batch: Batch, settings: CostSection) -> Iterator[Complaint]:
    for row, (provider, answer) in enumerate(zip(batch.column("provider"), batch.answers, strict=True)):
        named = settings.prices.get(provider or "")
        prices = [named] if named is not None else batch.context.endpoints.prices.get(provider or "", [])
        if not prices or answer.cost_usd is None or answer.completion_tokens is None or answer.cached_tokens:
            continue
        expected = [
            ((answer.prompt_tokens or 0) * price.prompt + answer.completion_tokens * price.completion) / 1e6
            for price in prices
        ]
        nearest = min(expected, key=lambda value, paid=answer.cost_usd: abs(paid - value))  # type: ignore[misc]
        if abs(answer.cost_usd - nearest) > settings.max_rate * max(nearest, 1e-9):
            yield Complaint(row, None, f"cost ${answer.cost_usd:.6f}; {provider}'s prices give ${nearest:.6f}")
