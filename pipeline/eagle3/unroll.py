"""Training-time test: the drafter's K steps over packed conversations, as it will run when it drafts.

At step j, row t (a token's place in its conversation) reads the fused state at t, or from step 1 on its own output of the step
before; embeds token t+1+j; and predicts token t+2+j, which the target predicts from its state at t+1+j. So ids, teacher and loss mask
shift together, by one more at each step, and never across the end of a conversation. A token's weight goes with the mask: it weighs
the prediction made when the token is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pipeline.eagle3.attention import Block, block_size, causal_diagonal, plan_blocks, to_device
from pipeline.eagle3.drafter import Drafter
from pipeline.shards import HiddenRow


@dataclass(frozen=True, slots=True)
class Pack:
    """Conversations end to end: [tokens, ...]; nothing is attended to or predicted across their borders."""

    token_ids: torch.Tensor
    aux: torch.Tensor
    last: torch.Tensor
    weights: torch.Tensor
    """Float32 [tokens]: what a token counts in the loss; 0 where it is not supervised."""
    lengths: tuple[int, ...]

    @property
    def loss_mask(self) -> torch.Tensor:
        """Bool [tokens]: which tokens are supervised."""
        return self.weights > 0


def pack_rows(rows: Sequence[HiddenRow], weights: Sequence[torch.Tensor]) -> Pack:
    """Lay conversations end to end, on the CPU, states in float32 unless stored narrower; ``weights`` are float32 [length] of each."""
    return Pack(
        torch.cat([row.token_ids for row in rows]),
        torch.cat([row.aux for row in rows]),
        torch.cat([row.last for row in rows]),
        torch.cat(list(weights)),
        tuple(len(row.token_ids) for row in rows),
    )


@dataclass(frozen=True, slots=True)
class Supervision:
    """Which queries of one step are supervised, and by which position of the pack's teacher."""

    queries: torch.Tensor
    """int64 [n]: number of the query."""
    teacher: torch.Tensor
    """int64 [n]: number among the plan's teacher rows."""
    weights: torch.Tensor
    """Float32 [n]: of the token that the query embeds, above 0."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A pack's geometry: depends on lengths and weights only."""

    inputs: torch.Tensor
    """int64 [rows]: places in the pack that have a next token; the step-0 keys."""
    queries: torch.Tensor
    """int64 [queries]: numbers in ``inputs`` of the rows that some step supervises; no other output is ever needed."""
    positions: torch.Tensor
    """int64 [rows]: place in the own conversation."""
    next_ids: list[torch.Tensor]
    """Step j's tokens to embed: at step 0 [rows], later [queries]."""
    blocks: list[Block]
    teacher_rows: torch.Tensor
    """int64 [n]: places in the pack whose next token is supervised."""
    supervised: list[Supervision]
    """One a step."""


def plan_unroll(pack: Pack, steps: int, *, every_row: bool = False) -> Plan:
    """Work out a pack's geometry for ``steps`` steps; with ``every_row`` each row is a query, for evaluation."""
    lengths = torch.tensor(pack.lengths)
    starts = torch.cumsum(lengths, 0) - lengths
    start, end = starts.repeat_interleave(lengths), (starts + lengths).repeat_interleave(lengths)
    place = torch.arange(len(start))
    inputs = place[place + 1 < end]
    loss_mask = pack.loss_mask
    supervised_at = [_supervised(inputs, end, loss_mask, step) for step in range(steps)]
    wanted = torch.stack(supervised_at).any(0)
    queries = torch.arange(len(inputs)) if every_row else wanted.nonzero().flatten()
    if not len(queries):
        queries = torch.arange(min(1, len(inputs)))
    first = torch.searchsorted(inputs, start[inputs][queries])
    at = inputs[queries]
    later = [pack.token_ids[torch.minimum(at + 1 + step, end[at] - 1)] for step in range(1, steps)]
    teacher_rows = (loss_mask & (place > start)).nonzero().flatten()
    return Plan(
        inputs=inputs,
        queries=queries,
        positions=inputs - start[inputs],
        next_ids=[pack.token_ids[inputs + 1], *later],
        blocks=plan_blocks(first, queries, block_size(pack.lengths)),
        teacher_rows=teacher_rows,
        supervised=[_supervision(flags[queries], at + 1 + step, teacher_rows, pack.weights) for step, flags in enumerate(supervised_at)],
    )


def _supervised(inputs: torch.Tensor, end: torch.Tensor, loss_mask: torch.Tensor, step: int) -> torch.Tensor:
    """Bool [rows]: is the token that row t embeds at this step inside its conversation and written by the target."""
    embedded = inputs + 1 + step
    inside = embedded < end[inputs]
    return inside & loss_mask[embedded.clamp(max=len(loss_mask) - 1)]


def _supervision(flags: torch.Tensor, embedded: torch.Tensor, teacher_rows: torch.Tensor, weights: torch.Tensor) -> Supervision:
    queries = flags.nonzero().flatten()
    places = embedded[queries]
    return Supervision(queries, torch.searchsorted(teacher_rows, places), weights[places])


def plan_to(plan: Plan, device: torch.device) -> Plan:
    """Move a plan to ``device``."""
    return Plan(
        plan.inputs.to(device),
        plan.queries.to(device),
        plan.positions.to(device),
        [ids.to(device) for ids in plan.next_ids],
        to_device(plan.blocks, device),
        plan.teacher_rows.to(device),
        [Supervision(s.queries.to(device), s.teacher.to(device), s.weights.to(device)) for s in plan.supervised],
    )


def unroll(drafter: Drafter, aux: torch.Tensor, plan: Plan) -> Iterator[torch.Tensor]:
    """Give each step's layer output [queries, hidden]; aux is the pack's [tokens, 3 * hidden]."""
    layer = drafter.midlayer
    hidden = drafter.fuse(aux[plan.inputs])[None]
    mixed = layer.mix(drafter.embed(plan.next_ids[0])[None], hidden)
    angles = drafter.angles(plan.positions[None])
    keys, values = (part[0] for part in layer.keys_values(mixed, angles))
    hidden, mixed = hidden[:, plan.queries], mixed[:, plan.queries]
    diagonals: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step in range(len(plan.next_ids)):
        if step:
            mixed = layer.mix(drafter.embed(plan.next_ids[step])[None], hidden)
        angles = drafter.angles(plan.positions[plan.queries][None] + step)
        queries = layer.queries(mixed, angles)[0]
        if step:
            key, value = layer.keys_values(mixed, angles)
            diagonals.append((key[0], value[0]))
        attended = causal_diagonal(queries, keys, values, diagonals, plan.blocks, drafter.scale)
        hidden = layer.finish(hidden, attended[None])
        yield hidden[0]
