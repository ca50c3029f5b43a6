"""The target as a batched decoder, with a KV cache whose slots are masked and never moved."""

from dataclasses import dataclass
from typing import Any

import torch

from pipeline.drafter.chain import visible
from pipeline.drafter.target_argmax import TargetArgmax
from pipeline.model.weights.target import Target, capturing


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """The target's output at some tokens."""

    choices: torch.Tensor
    """int64 [batch, slots]: the likeliest token after each slot; 0 where the slot does not count."""
    aux: torch.Tensor
    """[batch, slots, 3 * hidden]: the states that the drafter reads."""


@dataclass(frozen=True, slots=True)
class GreedyTarget:
    """A target for greedy decoding, and the limits of an answer."""

    target: Target
    argmax: TargetArgmax
    layer_ids: list[int]
    """Layers that the drafter reads, by input convention."""
    end: int
    """Token that ends an answer."""
    max_tokens: int
    """Most tokens of an answer."""


class TargetDecoder:
    """One batch of conversations in the target."""

    def __init__(self, setup: GreedyTarget, batch: int) -> None:
        from transformers import DynamicCache

        self._target, self._argmax, self._layer_ids = setup.target, setup.argmax, setup.layer_ids
        self._cache: Any = DynamicCache(config=setup.target.config)
        self._valid = torch.zeros(batch, 0, dtype=torch.bool, device=setup.target.device)

    @torch.inference_mode()
    def read(self, token_ids: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor) -> TargetOutput:
        """Append tokens [batch, slots] and return the target's output at each.

        ``valid`` marks the slots that count as input.
        """
        target = self._target
        caught = self._forward(token_ids, positions, valid)
        last = caught[target.num_layers]
        choices = torch.zeros_like(token_ids)
        choices[valid] = self._argmax.of(target.norm(last[valid.to(last.device)])).to(token_ids.device)
        return TargetOutput(choices, self._aux(caught))

    @torch.inference_mode()
    def states(self, token_ids: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Append tokens and return only the states that a drafter reads: aux [batch, slots, 3 * hidden]."""
        return self._aux(self._forward(token_ids, positions, valid))

    def _forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor
    ) -> dict[int, torch.Tensor]:
        target = self._target
        self._valid = torch.cat([self._valid, valid], 1)
        mask = visible(self._valid, token_ids.shape[1])
        with capturing(target, self._layer_ids) as caught:
            target.decoder(
                input_ids=token_ids,
                position_ids=positions,
                attention_mask=mask,
                use_cache=True,
                **{target.cache_argument: self._cache},
            )
        return caught

    def _aux(self, caught: dict[int, torch.Tensor]) -> torch.Tensor:
        return torch.cat([caught[number].to(self._target.device) for number in self._layer_ids], -1)

    def forget(self, rejected: torch.Tensor) -> None:
        """Mark the newest slots as not counting where ``rejected`` [batch, slots] is true."""
        slots = rejected.shape[1]
        self._valid = torch.cat([self._valid[:, :-slots], self._valid[:, -slots:] & ~rejected], 1)

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only the conversations ``rows``, int64 [kept]."""
        self._cache.batch_select_indices(rows)
        self._valid = self._valid[rows]


def padded(prompts: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return token ids, positions, and the slots that count, [batch, longest] each, padded on the right."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
    positions = torch.arange(ids.shape[1])[None].expand_as(ids)
    return ids.to(device), positions.to(device), (positions < lengths[:, None]).to(device)


def greedy(setup: GreedyTarget, prompts: list[list[int]]) -> list[list[int]]:
    """Return the likeliest tokens after each prompt, up to and including the end token or `max_tokens` of them."""
    decoder = TargetDecoder(setup, len(prompts))
    ids, positions, valid = padded(prompts, setup.target.device)
    lengths = valid.sum(1)
    token = decoder.read(ids, positions, valid).choices[torch.arange(len(prompts)), lengths - 1]
    outputs: list[list[int]] = [[] for _ in prompts]
    active = list(range(len(prompts)))
    place = lengths
    while True:
        for row, number in zip(active, token.tolist(), strict=True):
            outputs[row].append(number)
        going = [
            at
            for at, row in enumerate(active)
            if outputs[row][-1] != setup.end and len(outputs[row]) < setup.max_tokens
        ]
        if not going:
            return outputs
        if len(going) < len(active):
            kept = torch.tensor(going, device=token.device)
            decoder.keep(kept)
            active, token, place = [active[at] for at in going], token[kept], place[kept]
        token = decoder.read(token[:, None], place[:, None], torch.ones_like(token, dtype=torch.bool)[:, None]).choices[
            :, 0
        ]
        place = place + 1
