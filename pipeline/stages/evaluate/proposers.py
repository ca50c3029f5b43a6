"""Proposers of drafts: a drafter, trained or untrained, and an oracle that knows the answer."""

from dataclasses import dataclass
from typing import Protocol

import torch

from pipeline.drafter.chain import DraftCache, draft_chain, extend
from pipeline.drafter.drafter import Drafter


@dataclass(frozen=True, slots=True)
class CommittedTokens:
    """Tokens that the target just committed, [batch, slots, ...].

    Slot i has the states at a token and the token after it.
    """

    aux: torch.Tensor
    next_ids: torch.Tensor
    positions: torch.Tensor
    valid: torch.Tensor
    """Bool: the slots that count; in each conversation the first ones."""


class Proposer(Protocol):
    """Drafts for a batch of conversations."""

    def propose(self, committed: CommittedTokens, rows: list[int], written: list[int], count: int) -> torch.Tensor:
        """Read the committed tokens and draft: int64 [batch, count].

        Args:
            committed: the committed tokens.
            rows: numbers of the conversations.
            written: tokens that each conversation has.
            count: drafts to make.

        """

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only the conversations ``rows``, int64 [kept]."""


class ChainProposer:
    """The drafter with its KV cache."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self._cache = drafter, DraftCache()

    @torch.inference_mode()
    def propose(self, committed: CommittedTokens, rows: list[int], written: list[int], count: int) -> torch.Tensor:
        """Draft greedily, token by token."""
        del rows, written
        hidden = extend(
            self._drafter,
            self._cache,
            self._drafter.fuse(committed.aux),
            committed.next_ids,
            committed.positions,
            committed.valid,
        )
        newest = committed.valid.sum(1) - 1
        batch = torch.arange(len(newest), device=newest.device)
        return draft_chain(self._drafter, self._cache, hidden[batch, newest], committed.positions[batch, newest], count)

    def keep(self, rows: torch.Tensor) -> None:
        """Drop the other conversations' keys and values."""
        self._cache.keep_rows(rows)


class Oracle:
    """Proposes the tokens of plain greedy decoding: no drafter can be accepted more often."""

    def __init__(self, answers: list[list[int]]) -> None:
        self._answers = answers

    def propose(self, committed: CommittedTokens, rows: list[int], written: list[int], count: int) -> torch.Tensor:
        """Return the next tokens of the answers; zeros after their end."""
        drafts = [
            (self._answers[row][done : done + count] + [0] * count)[:count]
            for row, done in zip(rows, written, strict=True)
        ]
        return torch.tensor(drafts, device=committed.next_ids.device)

    def keep(self, rows: torch.Tensor) -> None:
        """Do nothing: there is no cache."""
