"""Sampling of one token for each of many requests: temperature, nucleus, and the request's own noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.standin.model.live_vocabulary import LiveVocabulary


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """Sampling parameters of one request."""

    temperature: float = 1.0
    """0 takes the most likely id."""
    top_p: float = 1.0
    coarse: bool = False
    """Round the logits to whole numbers first."""


def distribution(logits: Tensor, parameters: Sequence[SamplingParameters], live: LiveVocabulary) -> Tensor:
    """Return the probabilities [B, n + 1] that each row draws from; the last entry is all unused ids together.

    ``logits`` [B, n + 1] are the decoder's: the last one is that of each unused id.
    """
    coarse = torch.tensor([one.coarse for one in parameters])[:, None]
    logits = torch.where(coarse, logits.round(), logits)
    greedy = torch.tensor([one.temperature == 0 for one in parameters])[:, None]
    heat = torch.tensor([one.temperature or 1.0 for one in parameters], dtype=logits.dtype)[:, None]
    drawn = live.add_shared_mass(logits / heat).softmax(dim=-1)
    nucleus = [row for row, one in enumerate(parameters) if one.top_p < 1 and one.temperature > 0]
    if nucleus:
        mass = torch.tensor([parameters[row].top_p for row in nucleus], dtype=drawn.dtype)
        drawn[nucleus] = _nucleus(drawn[nucleus], logits[nucleus], mass)
    best = torch.zeros_like(drawn).scatter_(1, logits.argmax(dim=-1, keepdim=True), 1.0)
    return torch.where(greedy, best, drawn)


def _nucleus(drawn: Tensor, logits: Tensor, mass: Tensor) -> Tensor:
    """Keep the most likely ids of each row [B, n + 1] until their sum reaches ``mass`` [B]; the last of them stays.

    The shared entry of the unused ids is kept or dropped as a whole.
    """
    order = logits.argsort(dim=-1, descending=True, stable=True)
    ordered = drawn.gather(1, order)
    before = ordered.cumsum(dim=-1) - ordered
    kept = torch.where(before < mass[:, None], ordered, torch.zeros_like(ordered))
    return torch.zeros_like(drawn).scatter_(1, order, kept / kept.sum(dim=-1, keepdim=True))


def draw(probabilities: Tensor, noise: Sequence[tuple[float, float]], live: LiveVocabulary) -> list[int]:
    """Draw one id for each row: invert the cumulative distribution at the first number of the row's noise.

    If the shared entry is hit, the second number picks one of the unused ids, all equally likely. Together this is a
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
