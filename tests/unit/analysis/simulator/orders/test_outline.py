"""The highest sums from an outline are those of all events, one by one."""

from __future__ import annotations

import random

import pytest
from alive_blocks import made_of, position_of
from layered_step import Step

from oomdoctor.analysis.simulator.orders.depth import extend
from oomdoctor.analysis.simulator.orders.outline import Outline, outline_of
from oomdoctor.analysis.simulator.orders.steps import with_steady_step
from oomdoctor.analysis.simulator.tape import Order


def order_of(layers: int, odd: int | None = None) -> tuple[Order, list[int], Step]:
    step = Step(4, odd=odd)
    tape = step.run()
    order = extend(tape, {0: (4, layers)})
    steady = with_steady_step(order, tape.blocks)
    return steady, [block.size for block in tape.blocks], step


def highest(order: Order, sizes: list[int]) -> dict[tuple[str, str], tuple[int, int]]:
    """(event, bytes) of each window, from all events."""
    sums: list[int] = []
    for event in order.events:
        size = sizes[order.origin[abs(event) - 1]]
        sums.append((sums[-1] if sums else 0) + (size if event > 0 else -size))
    found: dict[tuple[str, str], tuple[int, int]] = {}
    ends = [window[0] for window in order.windows[1:]] + [len(order.events)]
    for (start, step, phase), end in zip(order.windows, ends, strict=True):
        for event in range(start, end):
            if sums[event] > found.get((step, phase), (0, -1))[1]:
                found[step, phase] = event, sums[event]
    return found


def told(outline: Outline, sizes: list[int]) -> dict[tuple[str, str], tuple[int, int]]:
    return {
        window: (position_of(outline, peak), peak.size)
        for window, peak in outline.peaks(sizes).items()
    }


@pytest.mark.parametrize("layers", [4, 5, 7, 8, 9, 10, 33])
@pytest.mark.parametrize("odd", [None, 0, 3])
@pytest.mark.parametrize("seed", range(5))
def test_peaks_and_what_is_alive_there(layers: int, odd: int | None, seed: int) -> None:
    order, sizes, step = order_of(layers, odd)
    draw = random.Random(seed)
    if seed:  # also sizes with which the layers free more than they take, or as much
        drawn = {size: draw.choice((0, 1, 2, 3, 1000)) for size in set(sizes)}
        sizes = [drawn[size] for size in sizes]
    outline = outline_of(order)
    assert told(outline, sizes) == highest(order, sizes)
    for peak in outline.peaks(sizes).values():
        alive = {s: n for s, n in outline.alive(peak).items() if sizes[s]}
        assert alive == made_of(order, sizes, step.tape.blocks, position_of(outline, peak))


def test_a_deep_order_has_a_short_outline() -> None:
    short, long = (outline_of(order_of(layers)[0]) for layers in (20, 80))
    assert [len(s.changes) for s in short.stretches] == [len(s.changes) for s in long.stretches]


@pytest.mark.parametrize("layers", [9, 33])
def test_what_repeats_is_the_same_each_time(layers: int) -> None:
    order, _, _ = order_of(layers)
    changes = [order.origin[e - 1] if e > 0 else ~order.origin[-e - 1] for e in order.events]
    assert order.repeats
    for first, length, times in order.repeats:
        parts = [changes[first + length * n :][:length] for n in range(times)]
        assert all(part == parts[0] for part in parts)
