"""Training-time test: the drafter's K steps over packed conversations, computed as in drafting.

At step j, row t (a token's place in its conversation) reads the fused state at t, or from step 1 on its own output of
the step before; embeds token t+1+j; and predicts token t+2+j, which the target predicts from its state at t+1+j. So
ids, teacher and loss mask shift together, by one more at each step, and never across the end of a conversation. A
token's weight shifts with the mask: it applies to the prediction that is made when the token is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from pipeline.drafter.attention import Block, block_size, causal_diagonal, plan_blocks, to_device
from pipeline.drafter.drafter import Drafter, rotate
from pipeline.formats.hidden_states import HiddenRow


@dataclass(frozen=True, slots=True)
class Pack:
    """Conversations end to end: [tokens, ...]; nothing is attended to or predicted across their borders."""

    token_ids: torch.Tensor
    aux: torch.Tensor
    last: torch.Tensor
    weights: torch.Tensor
    """Float32 [tokens]: the weight of a token in the loss; 0 if it is not supervised."""
    lengths: tuple[int, ...]

    @property
    def loss_mask(self) -> torch.Tensor:
        """Bool [tokens]: the supervised tokens."""
        return self.weights > 0


def pack_rows(rows: Sequence[HiddenRow], weights: Sequence[torch.Tensor]) -> Pack:
    """Lay conversations end to end on the CPU, in their stored dtype; ``weights`` are float32 [length] for each."""
    return Pack(
        torch.cat([row.token_ids for row in rows]),
        torch.cat([row.aux for row in rows]),
        torch.cat([row.last for row in rows]),
        torch.cat(list(weights)),
        tuple(len(row.token_ids) for row in rows),
    )


@dataclass(frozen=True, slots=True)
class Supervision:
    """The supervised queries of one step, and the positions of the teacher that supervise them."""

    queries: torch.Tensor
    """int64 [n]: numbers of the queries."""
    teacher: torch.Tensor
    """int64 [n]: numbers among the plan's teacher rows."""
    weights: torch.Tensor
    """Float32 [n]: weights of the tokens that the queries embed, above 0."""


@dataclass(frozen=True, slots=True)
class UnrollPlan:
    """The indexes of a pack's steps: they depend on lengths and weights only."""

    inputs: torch.Tensor
    """int64 [rows]: places in the pack that have a next token; the step-0 keys."""
    queries: torch.Tensor
    """int64 [queries]: numbers in ``inputs`` of the rows that some step supervises; other outputs are not needed."""
    positions: torch.Tensor
    """int64 [rows]: place in the row's conversation."""
    next_ids: torch.Tensor
    """int64 [rows]: the token after each row, which it embeds at step 0."""
    embedded: list[torch.Tensor]
    """For each step int64 [queries]: numbers of the rows whose token the step embeds. Past a conversation's end it is
    the last row, which no step supervises."""
    blocks: list[Block]
    teacher_rows: torch.Tensor
    """int64 [n]: places in the pack whose next token is supervised."""
    supervised: list[Supervision]
    """One for each step."""


def plan_unroll(pack: Pack, steps: int, *, every_row: bool = False) -> UnrollPlan:
    """Return the plan of a pack for ``steps`` steps; with ``every_row`` each row is a query, for evaluation."""
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
    last = torch.searchsorted(inputs, end[at] - 2)
    teacher_rows = (loss_mask & (place > start)).nonzero().flatten()
    return UnrollPlan(
        inputs=inputs,
        queries=queries,
        positions=inputs - start[inputs],
        next_ids=pack.token_ids[inputs + 1],
        embedded=[torch.minimum(queries + step, last) for step in range(steps)],
        blocks=plan_blocks(first, queries, block_size(pack.lengths)),
        teacher_rows=teacher_rows,
        supervised=[
            _supervision(flags[queries], at + 1 + step, teacher_rows, pack.weights)
            for step, flags in enumerate(supervised_at)
        ],
    )


def _supervised(inputs: torch.Tensor, end: torch.Tensor, loss_mask: torch.Tensor, step: int) -> torch.Tensor:
    """Return bool [rows]: the row embeds a token of its own conversation that the target wrote."""
    embedded = inputs + 1 + step
    inside = embedded < end[inputs]
    return inside & loss_mask[embedded.clamp(max=len(loss_mask) - 1)]


def _supervision(
    flags: torch.Tensor, embedded: torch.Tensor, teacher_rows: torch.Tensor, weights: torch.Tensor
) -> Supervision:
    queries = flags.nonzero().flatten()
    places = embedded[queries]
    return Supervision(queries, torch.searchsorted(teacher_rows, places), weights[places])


def plan_to(plan: UnrollPlan, device: torch.device) -> UnrollPlan:
    """Move a plan to ``device``."""
    return UnrollPlan(
        plan.inputs.to(device),
        plan.queries.to(device),
        plan.positions.to(device),
        plan.next_ids.to(device),
        [rows.to(device) for rows in plan.embedded],
        to_device(plan.blocks, device),
        plan.teacher_rows.to(device),
        [Supervision(s.queries.to(device), s.teacher.to(device), s.weights.to(device)) for s in plan.supervised],
    )


def unroll(drafter: Drafter, aux: torch.Tensor, plan: UnrollPlan) -> Iterator[torch.Tensor]:
    """Yield each step's layer output [queries, hidden]; ``aux`` is the pack's [tokens, 3 * hidden].

    The projection of an embedding depends on the token alone, and neighbouring steps embed the same tokens. So it is
    computed once for each row, and a step adds the projection of its hidden state.
    """
    layer, attention = drafter.midlayer, drafter.midlayer.self_attn
    by_embedding, by_hidden = attention.joint()
    wide, head_dim = attention.q_proj.out_features, attention.head_dim
    turned_heads = (wide + attention.k_proj.out_features) // head_dim
    embedded = linear(layer.input_layernorm(drafter.embed(plan.next_ids)), by_embedding)

    hidden = drafter.fuse(aux[plan.inputs])
    keys, values = _heads(embedded[:, wide:] + linear(layer.hidden_norm(hidden), by_hidden[wide:]), head_dim).chunk(2)
    keys = _rotated(drafter, keys, plan.positions)
    hidden, positions = hidden.index_select(0, plan.queries), plan.positions[plan.queries]
    diagonals: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step, rows in enumerate(plan.embedded):
        needed = slice(None) if step else slice(wide)  # the first step's keys and values are computed already
        projected = _heads(
            embedded[:, needed].index_select(0, rows) + linear(layer.hidden_norm(hidden), by_hidden[needed]), head_dim
        )
        queries, own = _rotated(drafter, projected[:turned_heads], positions + step).tensor_split([wide // head_dim])
        if step:
            diagonals.append((own, projected[turned_heads:]))
        attended = causal_diagonal(queries, keys, values, diagonals, plan.blocks, drafter.scale)
        hidden = layer.finish(hidden[None], attended[None])[0]
        yield hidden


def _heads(projected: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reshape [rows, heads * head_dim] to [heads, rows, head_dim]."""
    split: torch.Tensor = projected.unflatten(-1, (-1, head_dim))
    return split.transpose(0, 1)


def _rotated(drafter: Drafter, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Apply the rotary embedding to [heads, rows, head_dim]."""
    rotated: torch.Tensor = rotate(heads[None], drafter.angles(positions[None]))[0]
    return rotated
