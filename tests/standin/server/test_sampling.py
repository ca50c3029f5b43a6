"""Drawing one token: greedy, temperature, nucleus, and the shared entry, held against the full softmax."""

from collections import Counter
from random import Random

import pytest
import torch

from pipeline.standin.model.live_vocabulary import make_live_vocabulary
from pipeline.standin.server.sampling import SamplingParameters, distribution, draw

pytestmark = pytest.mark.slow

LIVE = make_live_vocabulary({2, 5, 7}, 10)
"""Ten ids, of which seven share a row."""
LOGITS = torch.tensor([[1.0, 0.5, -1.0, -0.5]], dtype=torch.float64)


def full() -> torch.Tensor:
    logits = torch.full((10,), -0.5, dtype=torch.float64)
    logits[LIVE.ids] = LOGITS[0, :3]
    return logits


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_the_shared_entry_makes_the_full_softmax_at_every_temperature(temperature: float) -> None:
    wanted = (full() / temperature).softmax(-1)
    drawn = distribution(LOGITS, [SamplingParameters(temperature)], LIVE)[0]
    assert torch.allclose(drawn[:3], wanted[LIVE.ids])
    assert torch.isclose(drawn[3], wanted[LIVE.unused].sum())


def test_greedy_takes_the_most_likely_id_even_where_the_unused_together_are_likelier() -> None:
    assert distribution(LOGITS, [SamplingParameters(temperature=0)], LIVE).tolist() == [[1, 0, 0, 0]]


def test_the_nucleus_holds_the_likeliest_ids_and_the_one_that_reaches_the_mass() -> None:
    chances = full().softmax(-1)
    first, second = chances[2].item(), chances[5].item()
    for top_p, kept in ((first - 0.01, 1), (first + 0.01, 2), (first + second + 0.01, 3), (0.9999, 4)):
        drawn = distribution(LOGITS, [SamplingParameters(top_p=top_p)], LIVE)[0]
        assert torch.count_nonzero(drawn) == kept
        assert torch.isclose(drawn.sum(), torch.ones((), dtype=torch.float64))
    two = distribution(LOGITS, [SamplingParameters(top_p=first + 0.01)], LIVE)[0]
    assert torch.isclose(two[0] / two[1], torch.tensor(first / second, dtype=torch.float64))


def test_a_coarse_provider_sees_whole_numbers() -> None:
    rounded = torch.tensor([[1.0, 0.0, -1.0, -0.0]], dtype=torch.float64)
    assert torch.equal(
        distribution(LOGITS, [SamplingParameters(coarse=True)], LIVE),
        distribution(rounded, [SamplingParameters()], LIVE),
    )


def test_rows_of_one_batch_keep_their_own_rules() -> None:
    rules = [
        SamplingParameters(0),
        SamplingParameters(0.5),
        SamplingParameters(1.0, 0.5),
        SamplingParameters(coarse=True),
    ]
    together = distribution(LOGITS.repeat(4, 1), rules, LIVE)
    for row, rule in enumerate(rules):
        assert torch.equal(together[row], distribution(LOGITS, [rule], LIVE)[0])


def test_draws_follow_the_distribution_and_unused_ids_are_equally_likely() -> None:
    noise, count = Random(0), 40_000
    probabilities = distribution(LOGITS, [SamplingParameters()], LIVE).repeat(count, 1)
    seen = Counter(draw(probabilities, [(noise.random(), noise.random()) for _ in range(count)], LIVE))
    wanted = full().softmax(-1)
    for token in range(10):
        assert abs(seen[token] / count - wanted[token].item()) < 4 * (wanted[token].item() / count) ** 0.5


def test_the_ends_of_the_noise_stay_inside_the_distribution() -> None:
    sure = torch.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    assert draw(sure, [(0.0, 0.0)], LIVE) == [5]
    assert draw(sure, [(1 - 2**-53, 0.0)], LIVE) == [5]
    shared = torch.tensor([[0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    assert [draw(shared, [(0.5, second)], LIVE)[0] for second in (0.0, 1 - 2**-53)] == [0, 9]
