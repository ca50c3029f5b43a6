"""Speculative decoding: draft a chain, verify it in one pass of the target, keep the right tokens.

A round reads the newest token and K drafts. If the first m drafts are right, m + 1 tokens are new: these drafts, and
the target's own next token.
"""

from dataclasses import dataclass, field

import torch

from pipeline.stages.evaluate.proposers import CommittedTokens, Proposer
from pipeline.stages.evaluate.target_decoder import GreedyTarget, TargetDecoder, padded


@dataclass(slots=True)
class AcceptanceCounts:
    """Sums over verification rounds.

    A round is cut if the answer ends within its accepted drafts; its other drafts are not judged.
    """

    rounds: int = 0
    tokens: int = 0
    """Tokens written in rounds; the first token of an answer comes from reading the prompt."""
    whole_rounds: int = 0
    accepted_at: list[int] = field(default_factory=list)
    """Whole rounds in which the drafts up to and including position i were accepted."""

    def add(self, other: "AcceptanceCounts") -> None:
        """Add the counts of ``other``."""
        self.rounds += other.rounds
        self.tokens += other.tokens
        self.whole_rounds += other.whole_rounds
        self.accepted_at = [
            a + b for a, b in zip(self.accepted_at or [0] * len(other.accepted_at), other.accepted_at, strict=True)
        ]

    @property
    def acceptance_length(self) -> float:
        """Tokens per whole round: 1 plus the accepted drafts; between 1 and draft tokens + 1."""
        return 1 + sum(self.accepted_at) / self.whole_rounds if self.whole_rounds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens per round, cut rounds included."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def per_position(self) -> list[float]:
        """Share of whole rounds in which the drafts up to each position were accepted."""
        return [count / self.whole_rounds if self.whole_rounds else 0.0 for count in self.accepted_at]


@dataclass(slots=True)
class Conversation:
    """A prompt and the answer that is being written."""

    prompt_length: int
    written: list[int]
    counts: AcceptanceCounts

    def take(self, tokens: list[int], end: int, most: int) -> bool:
        """Write a round's new tokens (accepted drafts, then the target's own); return whether the answer goes on."""
        kept = tokens[: tokens.index(end) + 1] if end in tokens else tokens
        kept = kept[: most - len(self.written)]
        self.written += kept
        self.counts.rounds += 1
        self.counts.tokens += len(kept)
        if len(kept) == len(tokens):
            self.counts.whole_rounds += 1
            for position in range(len(tokens) - 1):
                self.counts.accepted_at[position] += 1
        return self.written[-1] != end and len(self.written) < most


def speculate(
    setup: GreedyTarget, proposer: Proposer, prompts: list[list[int]], draft_tokens: int
) -> list[Conversation]:
    """Decode greedily with ``draft_tokens`` drafts a round.

    The answers are the target's own, whatever the drafter proposes.
    """
    decoder = TargetDecoder(setup, len(prompts))
    ids, positions, valid = padded(prompts, setup.target.device)
    read = decoder.read(ids, positions, valid)
    lengths = valid.sum(1)
    batch = torch.arange(len(prompts), device=ids.device)
    newest = read.choices[batch, lengths - 1]
    talks = [
        Conversation(len(prompt), [token], AcceptanceCounts(accepted_at=[0] * draft_tokens))
        for prompt, token in zip(prompts, newest.tolist(), strict=True)
    ]
    following = torch.cat([ids[:, 1:], ids[:, :1]], 1)
    following[batch, lengths - 1] = newest
    committed = CommittedTokens(read.aux, following, positions, valid)
    active = list(range(len(prompts)))
    going = [at for at, row in enumerate(active) if talks[row].written[-1] != setup.end and setup.max_tokens > 1]
    while going:
        if len(going) < len(active):
            active, committed = _keep(going, active, committed, decoder, proposer)
        drafted = proposer.propose(committed, active, [len(talks[row].written) for row in active], draft_tokens)
        committed, fresh = _verify(decoder, [talks[row] for row in active], drafted)
        going = [at for at, row in enumerate(active) if talks[row].take(fresh[at], setup.end, setup.max_tokens)]
    return talks


def _keep(
    going: list[int], active: list[int], committed: CommittedTokens, decoder: TargetDecoder, proposer: Proposer
) -> tuple[list[int], CommittedTokens]:
    """Drop the conversations that have ended."""
    rows = torch.tensor(going, device=committed.next_ids.device)
    decoder.keep(rows)
    proposer.keep(rows)
    return [active[at] for at in going], CommittedTokens(
        committed.aux[rows], committed.next_ids[rows], committed.positions[rows], committed.valid[rows]
    )


def _verify(
    decoder: TargetDecoder, talks: list[Conversation], drafted: torch.Tensor
) -> tuple[CommittedTokens, list[list[int]]]:
    """Run the target over the newest token and the drafts.

    Return the committed slots and each conversation's new tokens.
    """
    device = drafted.device
    newest = torch.tensor([talk.written[-1] for talk in talks], device=device)
    begin = torch.tensor([talk.prompt_length + len(talk.written) - 1 for talk in talks], device=device)
    tokens = torch.cat([newest[:, None], drafted], 1)
    slot = torch.arange(tokens.shape[1], device=device)[None]
    read = decoder.read(tokens, begin[:, None] + slot, torch.ones_like(tokens, dtype=torch.bool))
    right = (drafted == read.choices[:, :-1]).long().cumprod(1).sum(1)
    accepted = slot <= right[:, None]
    decoder.forget(~accepted)
    # where drafts were right they are the target's own choices, so the choices are the new tokens
    fresh = [row[: int(count) + 1] for row, count in zip(read.choices.tolist(), right.tolist(), strict=True)]
    return CommittedTokens(read.aux, read.choices, begin[:, None] + slot, accepted), fresh
