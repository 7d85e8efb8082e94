"""Kendall's tau-b by hand, with ties and with pairs that are too close to tell."""

from __future__ import annotations

import math

import pytest
from figures.ranks import agreement


@pytest.mark.parametrize(
    ("predicted", "measured", "tau"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0),
        ([3, 2, 1], [10, 20, 30], -1.0),
        ([1, 3, 2, 4], [1, 2, 3, 4], 4 / 6),
        # Of six pairs, four in order, one tied in either: 4 / sqrt(5 x 5).
        ([1, 1, 2, 3], [1, 2, 3, 3], 4 / 5),
        # Both sides tie the same pair, which then says nothing.
        ([1, 1, 2], [5, 5, 6], 1.0),
        ([1, 2, 2], [1, 2, 3], 2 / math.sqrt(6)),
    ],
)
def test_tau_b(predicted: list[float], measured: list[float], tau: float) -> None:
    assert agreement(predicted, measured).tau_b == pytest.approx(tau)


def test_nothing_is_told_by_one_value_or_by_none() -> None:
    assert agreement([1.0], [2.0]).tau_b is None
    assert agreement([1, 1], [2, 3]).tau_b is None
    assert agreement([1, 2], [3, 3]).tau_b is None


def test_pairs_too_close_to_each_other_are_left_out() -> None:
    predicted, measured = [2.0, 1.0, 3.0], [100.0, 104.0, 120.0]
    assert agreement(predicted, measured).tau_b == pytest.approx(1 / 3)
    assert agreement(predicted, measured, least=0.05).tau_b == 1.0
