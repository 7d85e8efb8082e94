"""Steady growth is found, early if it is fast; what only looks like it is not accused."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from oomdoctor.analysis.memory.trend import Growth, Trend
from oomdoctor.units import GIB, MIB


def first_growth(series: Callable[[int], float], steps: int) -> tuple[int, Growth] | None:
    trend = Trend()
    for step in range(1, steps + 1):
        found = trend.add(step, int(series(step)))
        if found is not None:
            return step, found
    return None


def noise(spread: float) -> Callable[[int], float]:
    made = random.Random(1)
    return lambda step: made.random() * spread


BASE = 20 * GIB
MANY = noise(2 * GIB)
SMALL = noise(4 * MIB)
LEAKS = {
    # series, bytes per step, the step at which it has to be known
    "each step": (lambda s: BASE + 100 * MIB * s, 100 * MIB, 18),
    "small": (lambda s: BASE + MIB * s, MIB, 34),
    "starts late": (lambda s: BASE + 10 * MIB * max(0, s - 3000), 10 * MIB, 3130),
    "with noise": (lambda s: BASE + 10 * MIB * s + SMALL(s), 10 * MIB, 70),
    "with much noise": (lambda s: BASE + 10 * MIB * s + MANY(s), 10 * MIB, 2100),
    "each evaluation": (lambda s: BASE + 500 * MIB * (s // 100), 5 * MIB, 1300),
    "freed in part": (lambda s: BASE + 3 * MIB * s + 40 * MIB * (s % 10), 3 * MIB, 1100),
}
CLEAN = {
    "constant": lambda s: BASE,
    "noise": lambda s: BASE + MANY(s),
    "warm-up": lambda s: BASE + min(s, 3) * GIB,
    "levels off": lambda s: BASE + 4 * GIB * (1 - math.exp(-s / 20)),
    "saw-tooth": lambda s: BASE + 50 * MIB * (s % 12),
    "sorted groups": lambda s: BASE + 30 * MIB * (50 - s % 50),
    "one jump": lambda s: BASE + 5 * GIB * (s > 700),
    "some jumps": lambda s: BASE + GIB * sum(s > at for at in (100, 250, 400, 1000)),
    "falls": lambda s: BASE - MIB * s / 10,
    "losses in a list": lambda s: BASE + 512 * s,
}


@pytest.mark.parametrize("name", LEAKS)
def test_steady_growth_is_found(name: str) -> None:
    series, slope, by = LEAKS[name]
    found = first_growth(series, by)
    assert found is not None
    step, growth = found
    assert growth.bytes_per_step == pytest.approx(slope, rel=0.25)
    assert 0 < growth.since < growth.until <= step


@pytest.mark.parametrize("length", [28, 40, 300])
def test_only_the_first_of_long_teeth_can_look_like_growth(length: int) -> None:
    trend = Trend()
    found = [s for s in range(1, 5000) if trend.add(s, BASE + 50 * MIB * (s % length))]
    assert all(step <= length for step in found)


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_no_steady_growth_is_not_accused(name: str) -> None:
    assert first_growth(CLEAN[name], 5000) is None


@pytest.mark.parametrize("seed", range(6))
def test_random_lengths_are_never_accused(seed: int) -> None:
    made = random.Random(seed)
    assert first_growth(lambda s: BASE + made.lognormvariate(6, 0.8) * MIB, 4_000) is None


@pytest.mark.parametrize("seed", range(6))
def test_memory_for_the_longest_row_so_far_is_never_accused(seed: int) -> None:
    made, longest = random.Random(seed), 0.0

    def series(step: int) -> float:
        nonlocal longest
        longest = max(longest, made.lognormvariate(6, 0.8))
        return BASE + longest * MIB

    assert first_growth(series, 4_000) is None


def test_it_begins_again() -> None:
    trend = Trend()
    for step in range(1, 18):
        assert trend.add(step, step * GIB) is None
    trend.forget()
    assert [trend.add(step, step * GIB) for step in range(18, 33)] == [None] * 15
    assert trend.add(33, 33 * GIB).since == 18
