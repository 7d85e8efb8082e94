"""Which series of levels grow for good."""

from __future__ import annotations

import random

import pytest

from oomdoctor.snapshot.growth_levels import rise_of


def ratchet(steps: int) -> list[int]:
    level, levels = 0, []
    for step in range(steps):
        level += 10
        if step % 8 == 7:
            level -= 40
        levels.append(level)
    return levels


def noise(steps: int) -> list[int]:
    chance = random.Random(1)
    return [chance.randrange(1000) for _ in range(steps)]


def cache(steps: int) -> list[int]:
    """A cache of 30 things that are asked for at random."""
    chance, had = random.Random(1), set()
    levels = []
    for _ in range(steps):
        had.add(chance.randrange(30))
        levels.append(len(had))
    return levels


GROW = {
    "each step": list(range(0, 1000, 10)),
    "seven steps": [0, 5, 10, 15, 20, 25, 30],
    "since the middle": [7] * 50 + list(range(7, 57)),
    "every tenth step": [step // 10 for step in range(100)],
    "freed in part": ratchet(100),
    "with noise": [20 * step + n % 100 for step, n in enumerate(noise(200))],
}
DO_NOT = {
    "nothing": [],
    "too short": [0, 1, 2, 3, 4],
    "flat": [5] * 200,
    "falls": list(range(100, 0, -1)),
    "once": [0] * 50 + [9] * 50,
    "three times": [step // 25 for step in range(100)],
    "one large and many small": [*range(10), *range(500, 510)],
    "emptied now and then": [step % 30 for step in range(200)],
    "noise": noise(200),
    "a cache that is full": [min(step, 40) for step in range(200)],
    "a cache that fills up": cache(120),
    "first up, then down": [*range(100), *range(100, 0, -1)],
}


@pytest.mark.parametrize("name", GROW)
def test_growth(name: str) -> None:
    levels = GROW[name]
    found = rise_of(levels)
    assert found is not None
    assert found.total == levels[-1] - min(levels) if name != "with noise" else found.total > 3000
    assert levels[found.first] < levels[-1] and max(found.at) < len(levels)


def test_where_it_begins() -> None:
    found = rise_of(GROW["since the middle"])
    assert found is not None and (found.total, found.first) == (49, 50)
    assert found.at == frozenset(range(51, 100))


@pytest.mark.parametrize("name", DO_NOT)
def test_no_growth(name: str) -> None:
    assert rise_of(DO_NOT[name]) is None
