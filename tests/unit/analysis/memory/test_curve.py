"""A curve keeps the peak of every stretch, to the byte, and says what it consists of."""

from __future__ import annotations

import random

import pytest

from oomdoctor.analysis.memory.curve import memory_curve, stretches

NAMES = ("weights", "activations", "temporary")


def events(count: int, seed: int) -> tuple[list[int], list[str]]:
    """Births and deaths, each death of a block that lives."""
    chosen = random.Random(seed)
    alive: list[tuple[int, str]] = []
    changes, names = [], []
    for _ in range(count):
        if alive and chosen.random() < 0.45:
            size, name = alive.pop(chosen.randrange(len(alive)))
            size = -size
        else:
            size, name = chosen.randrange(1, 1 << 20), chosen.choice(NAMES)
            alive.append((size, name))
        changes.append(size)
        names.append(name)
    return changes, names


def windows(count: int) -> list[tuple[int, str, str]]:
    return [
        (0, "load", "load"),
        (count // 5, "first", "forward"),
        (count // 2, "first", "nothing"),  # ends where it begins
        (count // 2, "first", "backward"),
        (count - 3, "first", "optimizer"),
    ]


@pytest.mark.parametrize("count", [6, 40, 1_000, 20_000])
def test_stretches_cover_every_event_once_each_in_one_window(count: int) -> None:
    parts = stretches(windows(count), count, 50)
    assert [event for part in parts for event in range(part.first, part.end)] == list(range(count))
    assert len(parts) <= 50 + 2 * len(windows(count))
    assert "nothing" not in {part.phase for part in parts}
    assert sum(part.phase == "optimizer" for part in parts) >= 2


@pytest.mark.parametrize("seed", range(5))
def test_the_peak_is_exact_and_categories_add_up(seed: int) -> None:
    changes, names = events(5_000, seed)
    curve = memory_curve(changes, names, stretches(windows(5_000), 5_000, 60))
    totals = [sum(changes[: number + 1]) for number in range(len(changes))]
    assert curve.allocated_bytes[curve.peak] == max(totals)
    assert curve.event[curve.peak] == totals.index(max(totals))
    for moment, event in enumerate(curve.event):
        assert curve.allocated_bytes[moment] == totals[event]
        assert curve.rest_bytes(moment) == 0
        for name in NAMES:
            mine = [
                size
                for size, own in zip(changes[: event + 1], names[: event + 1], strict=True)
                if own == name
            ]
            assert curve.by_category[name][moment] == sum(mine)


def test_what_the_allocator_knows_beyond_the_blocks_is_the_rest() -> None:
    changes, names = events(300, 1)
    parts = stretches(windows(300), 300, 20)
    plain = memory_curve(changes, names, parts)
    curve = memory_curve(changes, names, parts, [size + 512 for size in plain.allocated_bytes])
    assert curve.by_category == plain.by_category
    assert {curve.rest_bytes(moment) for moment in range(len(parts))} == {512}


def test_phases_of_two_micro_steps_follow_each_other() -> None:
    order = [(0, "first", "forward"), (4, "first", "backward"), (8, "first", "forward")]
    curve = memory_curve([1] * 12, ["weights"] * 12, stretches(order, 12, 6))
    assert [phase.phase for phase in curve.phases] == ["forward", "backward", "forward"]
    assert [curve.event[phase.moment] for phase in curve.phases] == [1, 5, 9]
    assert curve.peak == len(curve.event) - 1
