"""Batched decoding of the compact stand-in with a key-value cache; rows do not affect each other.

It runs in float64. A different batch changes a logit by about 1e-14, so a sample drawn with the row's own noise stays
the same whatever else is in the batch.
"""

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.standin.model.live_vocabulary import LiveVocabulary
from pipeline.standin.model.llama import Llama, hidden

_BLOCK = 16
"""The part of the cache that is read is rounded up to this many positions."""


class LlamaDecoder:
    """A cache of ``rows`` sequences of at most ``length`` tokens each; the rows in use are always the first ones."""

    def __init__(self, model: Llama, live: LiveVocabulary, rows: int, length: int) -> None:
        shape = model.shape
        self.rows, self.length = rows, length
        self._used: list[int] = []
        self._model, self._live = model, live
        size = (shape.layers, 2, rows, shape.heads, length, shape.width // shape.heads)
        self._cache = torch.zeros(size, dtype=model.embed.dtype)

    @torch.no_grad()
    def start(self, ids: list[int]) -> Tensor:
        """Read a prompt into the next row; return the logits [n + 1] after it, the last one that of each unused id."""
        row, count = len(self._used), len(ids)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._cache[layer, 0, row, :, :count] = k[0]
            self._cache[layer, 1, row, :, :count] = v[0]
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        places = self._live.place[torch.tensor(ids)][None]
        states = hidden(self._model, places, torch.arange(count)[None], attend)
        self._used.append(count)
        return functional.linear(states[0, -1], self._model.head)

    def drop(self, row: int) -> None:
        """Free a row; the last row takes its place."""
        used = self._used.pop()
        if row < len(self._used):
            self._cache[:, :, row, :, :used] = self._cache[:, :, len(self._used), :, :used]
            self._used[row] = used

    @torch.no_grad()
    def step(self, ids: list[int]) -> Tensor:
        """Append one id to every row; return the logits [rows in use, n + 1] after it."""
        count = len(self._used)
        index, at = torch.arange(count), torch.tensor(self._used)
        reach = min(self.length, (max(self._used) // _BLOCK + 1) * _BLOCK)
        mask = (torch.arange(reach) > at[:, None])[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._cache[layer, 0, :count], self._cache[layer, 1, :count]
            keys[index, :, at], values[index, :, at] = k[:, :, 0], v[:, :, 0]
            scores = torch.matmul(q, keys[:, :, :reach].transpose(-1, -2)) / q.shape[-1] ** 0.5
            return torch.matmul(scores.masked_fill(mask, -torch.inf).softmax(dim=-1), values[:, :, :reach])

        places = self._live.place[torch.tensor(ids)][:, None]
        states = hidden(self._model, places, at[:, None], attend)
        self._used = [used + 1 for used in self._used]
        return functional.linear(states[:, 0], self._model.head)
