"""Batched decoding of the compact stand-in with a key-value cache: rows come and go, none notices the others.

Runs in float64. A different batch changes a logit by about 1e-14, so a sample drawn with the row's own noise stays the
same whatever else is in flight.
"""

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.live import Live
from pipeline.llama import Llama, hidden

_BLOCK = 64
"""Cache positions read are rounded up to this."""


class Decoder:
    """A cache of ``rows`` sequences of at most ``length`` tokens each."""

    def __init__(self, model: Llama, live: Live, rows: int, length: int) -> None:
        shape = model.shape
        self.rows, self.length = rows, length
        self.used = torch.zeros(rows, dtype=torch.int64)
        """Tokens in the cache, a row."""
        self._model, self._live = model, live
        size = (shape.layers, 2, rows, shape.heads, length, shape.width // shape.heads)
        self._cache = torch.zeros(size, dtype=model.embed.dtype)

    @torch.no_grad()
    def start(self, row: int, ids: list[int]) -> Tensor:
        """Read a prompt into ``row``; give the logits [n + 1] after it."""
        count = len(ids)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._cache[layer, 0, row, :, :count] = k[0]
            self._cache[layer, 1, row, :, :count] = v[0]
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        places = self._live.place[torch.tensor(ids)][None]
        states = hidden(self._model, places, torch.arange(count)[None], attend)
        self.used[row] = count
        return self._live.logits(self._model, states[0, -1])

    @torch.no_grad()
    def step(self, rows: list[int], ids: list[int]) -> Tensor:
        """Append one id to each of ``rows`` (ascending); give the logits [rows, n + 1] after it."""
        index = torch.tensor(rows)
        at = self.used[index]
        reach = min(self.length, (int(at.max()) // _BLOCK + 1) * _BLOCK)
        every = rows == list(range(len(rows)))
        mask = (torch.arange(reach) > at[:, None])[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._cache[layer, 0], self._cache[layer, 1]
            keys[index, :, at], values[index, :, at] = k[:, :, 0], v[:, :, 0]
            keys, values = (table[: len(rows), :, :reach] if every else table[index, :, :reach] for table in (keys, values))
            scores = (torch.matmul(q, keys.transpose(-1, -2)) / q.shape[-1] ** 0.5).masked_fill(mask, -torch.inf)
            return torch.matmul(scores.softmax(dim=-1), values)

        places = self._live.place[torch.tensor(ids)][:, None]
        states = hidden(self._model, places, at[:, None], attend)
        self.used[index] += 1
        return self._live.logits(self._model, states[:, 0])
