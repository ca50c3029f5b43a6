"""Plots: bins add up, and every plot has its numbers as text."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.html.plots import bars, histogram, lines, signed_histogram, stacked

VALUES = st.lists(st.integers(-5000, 5000), max_size=200).map(lambda values: np.array(values, dtype=np.int64))


@given(values=VALUES)
@settings(deadline=None)
def test_every_value_is_in_exactly_one_bin(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    assert sum(count for _label, count in histogram(values)) == len(values)
    assert sum(count for _label, count in signed_histogram(values)) == len(values)
    assert len(histogram(values)) <= 24


def test_bins_of_differences_double_away_from_zero() -> None:
    assert signed_histogram(np.array([0, 0, 1, -1, 2, 3, -7])) == [
        ("-7…-4", 1),
        ("-3…-2", 0),
        ("-1", 1),
        ("0", 2),
        ("+1", 1),
        ("+2…+3", 2),
        ("+4…+7", 0),
    ]


def test_no_values_are_said_to_be_none() -> None:
    assert "Nothing to show" in bars("t", [], "tokens")
    assert "Nothing to show" in lines("t", [1.0], {"a": [None]}, "step")


def test_a_picture_has_its_numbers_as_text() -> None:
    found = bars("t", [("1–2", 30), ("3–4", 70)], "tokens")
    assert "1–2 tokens: 30" in found
    assert '<td class="n" data-v="70">70</td>' in found
    assert "a, ids: 3 of 4" in stacked("t", {"a": {"ids": 3, "text": 1}}, ("ids", "text"))


def test_a_line_breaks_where_a_value_is_missing() -> None:
    found = lines("t", [0.0, 1.0, 2.0, 3.0], {"a": [1.0, None, 3.0, 4.0]}, "step")
    assert found.count("M") == 2
