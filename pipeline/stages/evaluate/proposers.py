"""Who drafts: the trained drafter; an oracle that knows the answer; and, as the other anchor, a drafter nobody trained."""

from dataclasses import dataclass
from typing import Protocol

import torch

from pipeline.drafter.chain import DraftCache, draft_chain, extend
from pipeline.drafter.drafter import Drafter


@dataclass(frozen=True, slots=True)
class CommittedTokens:
    """What the target just committed: [batch, slots, ...]; slot i holds the states at a token, and the token that follows it."""

    aux: torch.Tensor
    next_ids: torch.Tensor
    positions: torch.Tensor
    valid: torch.Tensor
    """Which slots count; in each conversation a run from the first."""


class Proposer(Protocol):
    """Drafts for a batch of conversations."""

    def propose(self, news: CommittedTokens, rows: list[int], written: list[int], count: int) -> torch.Tensor:
        """Take in what was committed, and draft: int64 [batch, count]. ``rows`` names the conversations, ``written`` how many tokens each has."""

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with some conversations only, int64 [kept]."""


class ChainProposer:
    """The drafter with its KV cache."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self._cache = drafter, DraftCache()

    @torch.inference_mode()
    def propose(self, news: CommittedTokens, rows: list[int], written: list[int], count: int) -> torch.Tensor:
        """Draft greedily, one token after the other."""
        del rows, written
        hidden = extend(
            self._drafter, self._cache, self._drafter.fuse(news.aux), news.next_ids, news.positions, news.valid
        )
        newest = news.valid.sum(1) - 1
        batch = torch.arange(len(newest), device=newest.device)
        return draft_chain(self._drafter, self._cache, hidden[batch, newest], news.positions[batch, newest], count)

    def keep(self, rows: torch.Tensor) -> None:
        """Drop the other conversations' keys and values."""
        self._cache.keep_rows(rows)


class Oracle:
    """Proposes what plain greedy decoding wrote: the most that any drafter can reach."""

    def __init__(self, answers: list[list[int]]) -> None:
        self._answers = answers

    def propose(self, news: CommittedTokens, rows: list[int], written: list[int], count: int) -> torch.Tensor:
        """Read off the next tokens; after the end, zeros."""
        drafts = [
            (self._answers[row][done : done + count] + [0] * count)[:count]
            for row, done in zip(rows, written, strict=True)
        ]
        return torch.tensor(drafts, device=news.next_ids.device)

    def keep(self, rows: torch.Tensor) -> None:
        """Nothing is kept."""
