"""An estimate of the acceptance length of chain drafting, from teacher-forced steps.

For each supervised start, c_k is 1 if the drafter's first k tokens all equal the target's choices over its whole
vocabulary; the estimate is 1 + sum_k mean c_k. A step's logits equal those of real drafting if the earlier drafts were
right, so the estimate is exact for greedy text, but averaged over all starts instead of the rounds that decoding
begins.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pipeline.drafter.drafter import Drafter
from pipeline.drafter.unroll import Pack, plan_to, plan_unroll, unroll


@dataclass(frozen=True, slots=True)
class JudgedPack:
    """A pack, and the target's choice of the next token at each of its tokens."""

    pack: Pack
    choices: torch.Tensor
    """int64 [tokens]: the target's likeliest next token; read only if the next token is supervised."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Acceptance by draft position, from summed counts."""

    starts: tuple[int, ...]
    """By position: starts whose draft of that position has a target."""
    accepted: tuple[int, ...]
    """Of those starts, the ones with all drafts up to the position right."""

    @property
    def length(self) -> float:
        """Tokens per round: between 1 and one more than the number of positions."""
        return 1 + sum(good / all_ for good, all_ in zip(self.accepted, self.starts, strict=True) if all_)

    @property
    def per_position(self) -> list[float]:
        """Share of starts accepted up to and including each position."""
        return [good / all_ if all_ else 0.0 for good, all_ in zip(self.accepted, self.starts, strict=True)]


@torch.no_grad()
def estimate(drafter: Drafter, packs: Iterable[JudgedPack], steps: int) -> Estimate:
    """Run the drafter over packs on its device, and count the accepted drafts."""
    starts, accepted = [0] * steps, [0] * steps
    device = drafter.fc.weight.device
    for judged in packs:
        plan = plan_to(plan_unroll(judged.pack, steps, every_row=True), device)
        choices = judged.choices.to(device)[plan.teacher_rows]
        begins = torch.zeros(len(plan.queries), dtype=torch.bool, device=device)
        begins[plan.supervised[0].queries] = True
        right = begins.clone()
        for step, hidden in enumerate(unroll(drafter, judged.pack.aux.to(device), plan)):
            supervised = plan.supervised[step]
            drafts = drafter.to_target_ids(drafter.logits(hidden[supervised.queries]).argmax(-1))
            agrees = torch.zeros_like(right)
            agrees[supervised.queries] = drafts == choices[supervised.teacher]
            right &= agrees
            starts[step] += int(begins[supervised.queries].sum())
            accepted[step] += int(right.sum())
    return Estimate(tuple(starts), tuple(accepted))
