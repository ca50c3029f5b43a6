"""Matches and intervals of a calibration."""

import pytest

from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.calibrate.comparison import IdComparison
from pipeline.stages.calibrate.scores import wilson
from tests.answers.build import CLOSE, END


@pytest.fixture(scope="module")
def comparison(kimi: TargetRecord, tokenizer: Tokenizer) -> IdComparison:
    return IdComparison(kimi, tokenizer)


def test_the_same_text_cut_otherwise_is_a_difference_of_segmentation(
    comparison: IdComparison, tokenizer: Tokenizer
) -> None:
    having, hav, ing = tokenizer.encode(" having"), 53791, 288
    assert tokenizer.decode_bytes([hav, ing]) == b" having"
    assert comparison.match([*having, CLOSE, END], [hav, ing, CLOSE, END]) == "segmentation"
    assert comparison.match([*having, CLOSE, END], [*having, CLOSE, END]) == "exact"
    assert comparison.match([*having, END], [*having, CLOSE, END]) == "text"
    assert comparison.match([], [CLOSE, END]) == "none"
    assert comparison.canonical([*having, CLOSE, END], "open")
    assert not comparison.canonical([hav, ing, CLOSE, END], "open")


def test_a_first_difference_is_shown_decoded(comparison: IdComparison, tokenizer: Tokenizer) -> None:
    shown = comparison.first_difference([*tokenizer.encode("Five."), END], [*tokenizer.encode("Five!"), END])
    assert shown["position"] == 1
    assert shown["rebuilt"] == ["Five", ".", "<|im_end|>"]
    assert shown["true"] == ["Five", "!", "<|im_end|>"]


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 0, 0, 1), (10, 10, 0.7225, 1), (0, 10, 0, 0.2775), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_matches_published_values(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)
