"""The target as a batched decoder with a KV cache that tolerates holes: a slot that does not count is masked, never moved."""

from dataclasses import dataclass
from typing import Any

import torch

from pipeline.drafter.chain import visible
from pipeline.drafter.target_argmax import TargetArgmax
from pipeline.model.weights import Target, capturing


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What the target makes of some tokens."""

    choices: torch.Tensor
    """int64 [batch, slots]: its likeliest next token after each; 0 where the slot does not count."""
    aux: torch.Tensor
    """[batch, slots, 3 * hidden]: what the drafter reads."""


class TargetDecoder:
    """One batch of conversations in the target."""

    def __init__(self, target: Target, choices: TargetArgmax, layer_ids: list[int], batch: int) -> None:
        from transformers import DynamicCache

        self._target, self._choices, self._layer_ids = target, choices, layer_ids
        self._cache: Any = DynamicCache(config=target.config)
        self._valid = torch.zeros(batch, 0, dtype=torch.bool, device=target.device)

    @torch.inference_mode()
    def read(self, token_ids: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor) -> TargetOutput:
        """Append tokens [batch, slots] and give the target's word on each; ``valid`` says which slots count as input."""
        target = self._target
        caught = self._forward(token_ids, positions, valid)
        last = caught[target.num_layers]
        choices = torch.zeros_like(token_ids)
        choices[valid] = self._choices.of(target.norm(last[valid.to(last.device)])).to(token_ids.device)
        return TargetOutput(choices, self._aux(caught))

    @torch.inference_mode()
    def states(self, token_ids: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Append tokens and give only what a drafter reads: aux [batch, slots, 3 * hidden]."""
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
        """Mark newest slots as not counting, where ``rejected`` [batch, slots] is true."""
        slots = rejected.shape[1]
        self._valid = torch.cat([self._valid[:, :-slots], self._valid[:, -slots:] & ~rejected], 1)

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with some conversations only, int64 [kept]."""
        self._cache.batch_select_indices(rows)
        self._valid = self._valid[rows]


def padded(prompts: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, positions, and which slots count, [batch, longest] each, padded on the right."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
    positions = torch.arange(ids.shape[1])[None].expand_as(ids)
    return ids.to(device), positions.to(device), (positions < lengths[:, None]).to(device)


def greedy(
    target: Target, choices: TargetArgmax, layer_ids: list[int], prompts: list[list[int]], end: int, most: int
) -> list[list[int]]:
    """Decode plainly: the likeliest token after each prompt, up to and including ``end`` or ``most`` of them."""
    decoder = TargetDecoder(target, choices, layer_ids, len(prompts))
    ids, positions, valid = padded(prompts, target.device)
    lengths = valid.sum(1)
    token = decoder.read(ids, positions, valid).choices[torch.arange(len(prompts)), lengths - 1]
    outputs: list[list[int]] = [[] for _ in prompts]
    active = list(range(len(prompts)))
    place = lengths
    while True:
        for row, number in zip(active, token.tolist(), strict=True):
            outputs[row].append(number)
        going = [at for at, row in enumerate(active) if outputs[row][-1] != end and len(outputs[row]) < most]
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
