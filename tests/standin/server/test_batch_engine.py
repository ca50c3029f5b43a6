"""The batch engine: waiting jobs when a step fails, and when the engine is closed."""

import pytest
import torch

from pipeline.standin.model.live_vocabulary import LiveVocabulary, make_live_vocabulary
from pipeline.standin.model.llama import Llama, LlamaShape, initial
from pipeline.standin.server.batch_engine import BatchEngine, DecodingJob
from pipeline.standin.server.sampling import SamplingParameters

pytestmark = pytest.mark.slow


def job(prompt: list[int], longest: int = 6, seed: bytes = b"a") -> DecodingJob:
    return DecodingJob(prompt, longest, 3, SamplingParameters(), seed, lambda _: False)


@pytest.fixture(scope="module")
def small() -> tuple[Llama, LiveVocabulary]:
    live = make_live_vocabulary(set(range(0, 90, 3)), 100)
    return initial(LlamaShape(7, 16, 32, 2), len(live.ids) + 1, 0.2, torch.Generator().manual_seed(1)).to(
        torch.float64
    ), live


def test_the_seed_alone_decides_and_the_end_or_the_limit_ends(small: tuple[Llama, LiveVocabulary]) -> None:
    engine = BatchEngine(*small)
    try:
        first = [engine.submit(job([6, 9], 30, bytes([number]))) for number in range(70)]
        again = [engine.submit(job([6, 9], 30, bytes([number]))) for number in reversed(range(70))]
        written = [future.result(60) for future in first]
        assert written == [future.result(60) for future in again][::-1]
    finally:
        engine.close()
    assert len({tuple(each.ids) for each in written}) > 60
    for each in written:
        assert each.ids.count(3) == (each.finish == "end")
        assert each.ids[-1] == 3 or len(each.ids) == 30
    assert {each.finish for each in written} == {"end", "length"}


def test_everyone_who_waits_hears_of_a_failure_also_later_ones(small: tuple[Llama, LiveVocabulary]) -> None:
    engine = BatchEngine(*small)
    try:
        futures = [engine.submit(job([6, 9], 200)), engine.submit(job([100_000])), engine.submit(job([6]))]
        errors = [future.exception(60) for future in futures]
        late = engine.submit(job([6])).exception(60)
    finally:
        engine.close()
    assert all(isinstance(error, IndexError) for error in [*errors[1:], late])


def test_closing_an_idle_engine_returns(small: tuple[Llama, LiveVocabulary]) -> None:
    engine = BatchEngine(*small)
    engine.close()
    assert not engine._thread.is_alive()
