"""One token from logits: temperature, nucleus, and the request's own noise, for many requests at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.standin.model.live_vocabulary import Live


@dataclass(frozen=True, slots=True)
class Rule:
    """How a request wants its tokens drawn."""

    temperature: float = 1.0
    """0 takes the most likely id."""
    top_p: float = 1.0
    coarse: bool = False
    """Round the logits to whole numbers first."""


def distribution(logits: Tensor, rules: Sequence[Rule], live: Live) -> Tensor:
    """Probabilities [B, n + 1] that each row draws from; the last entry is all unused ids together.

    ``logits`` [B, n + 1] are as the decoder gives them: the last is that of any one unused id.
    """
    coarse = torch.tensor([rule.coarse for rule in rules])[:, None]
    logits = torch.where(coarse, logits.round(), logits)
    greedy = torch.tensor([rule.temperature == 0 for rule in rules])[:, None]
    heat = torch.tensor([rule.temperature or 1.0 for rule in rules], dtype=logits.dtype)[:, None]
    drawn = live.counted(logits / heat).softmax(dim=-1)
    nucleus = [row for row, rule in enumerate(rules) if rule.top_p < 1 and rule.temperature > 0]
    if nucleus:
        mass = torch.tensor([rules[row].top_p for row in nucleus], dtype=drawn.dtype)
        drawn[nucleus] = _nucleus(drawn[nucleus], logits[nucleus], mass)
    best = torch.zeros_like(drawn).scatter_(1, logits.argmax(dim=-1, keepdim=True), 1.0)
    return torch.where(greedy, best, drawn)


def _nucleus(drawn: Tensor, logits: Tensor, mass: Tensor) -> Tensor:
    """Keep the most likely ids of each row until they hold ``mass``; what reaches it stays, ids with equal chances together."""
    order = logits.argsort(dim=-1, descending=True, stable=True)
    ordered = drawn.gather(1, order)
    before = ordered.cumsum(dim=-1) - ordered
    kept = torch.where(before < mass[:, None], ordered, torch.zeros_like(ordered))
    return torch.zeros_like(drawn).scatter_(1, order, kept / kept.sum(dim=-1, keepdim=True))


def draw(probabilities: Tensor, noise: Sequence[tuple[float, float]], live: Live) -> list[int]:
    """One id a row, by inverting the cumulative distribution at the first number of its noise.

    When the shared entry is hit, the second number picks one of the unused ids, all equally likely: together that is a
    draw from the full softmax.
    """
    totals = probabilities.cumsum(dim=-1)
    points = torch.tensor([first for first, _ in noise], dtype=totals.dtype)[:, None] * totals[:, -1:]
    places = torch.searchsorted(totals, points, right=True).clamp(max=probabilities.shape[-1] - 1)[:, 0].tolist()
    unused = len(live.unused)
    return [
        int(live.ids[place]) if place < len(live.ids) else int(live.unused[min(unused - 1, int(second * unused))])
        for place, (_, second) in zip(places, noise, strict=True)
    ]
