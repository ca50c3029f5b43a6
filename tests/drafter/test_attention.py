"""One causal block plus diagonal keys is the attention of a dense [L, K L] mask: values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from pipeline.drafter.attention import causal_diagonal, plan_blocks

pytestmark = pytest.mark.slow


def dense(
    q: torch.Tensor,
    k0: torch.Tensor,
    v0: torch.Tensor,
    diagonals: list[tuple[torch.Tensor, torch.Tensor]],
    document: torch.Tensor,
    queries: torch.Tensor,
) -> torch.Tensor:
    """Compute the attention with a mask over all keys.

    A query sees step-0 keys of its own document up to its own row, and later keys only at its own row.
    """
    place = torch.arange(len(document))
    causal = (place[None] <= queries[:, None]) & (document[None] == document[queries][:, None])
    masks = [causal] + [torch.eye(len(queries), dtype=torch.bool)] * len(diagonals)
    keys = torch.cat([k0, *[key for key, _ in diagonals]], 1)
    values = torch.cat([v0, *[value for _, value in diagonals]], 1)
    return scaled_dot_product_attention(
        q[None], keys[None], values[None], torch.cat(masks, 1)[None, None], scale=0.3, enable_gqa=True
    )[0]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(0, 3),
    st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    st.integers(1, 50),
    st.integers(0, 99),
)
def test_values_and_gradients_equal_the_dense_mask(
    lengths: list[int], steps: int, heads: tuple[int, int], block: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    total = len(document)
    chosen = (torch.rand(total, generator=generator) < 0.7).nonzero().flatten()
    queries = chosen if len(chosen) else torch.tensor([0])
    starts = torch.searchsorted(document, document[queries])
    blocks = plan_blocks(starts, queries, block)

    def draw(count: int, rows: int) -> torch.Tensor:
        return torch.randn(count, rows, 8, generator=generator, dtype=torch.float64).requires_grad_()

    q, k0, v0 = draw(heads[0], len(queries)), draw(heads[1], total), draw(heads[1], total)
    diagonals = [(draw(heads[1], len(queries)), draw(heads[1], len(queries))) for _ in range(steps)]
    leaves = [q, k0, v0, *[part for pair in diagonals for part in pair]]
    ours, theirs = causal_diagonal(q, k0, v0, diagonals, blocks, 0.3), dense(q, k0, v0, diagonals, document, queries)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    weights = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    found = torch.autograd.grad((ours * weights).sum(), leaves)
    expected = torch.autograd.grad((theirs * weights).sum(), leaves)
    for mine, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-5)


def test_scores_far_beyond_exp_do_not_overflow() -> None:
    q, k = torch.full((1, 4, 8), 50.0), torch.full((1, 4, 8), 50.0)
    out = causal_diagonal(
        q,
        k,
        torch.ones(1, 4, 8),
        [(k, torch.ones(1, 4, 8))],
        plan_blocks(torch.zeros(4, dtype=torch.int64), torch.arange(4)),
        1.0,
    )
    torch.testing.assert_close(out, torch.ones(1, 4, 8))


def test_blocks_hide_other_documents_and_the_future() -> None:
    (block,) = plan_blocks(torch.tensor([0, 0, 2, 2]), torch.tensor([0, 1, 2, 3]))
    assert (~block.hidden).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
