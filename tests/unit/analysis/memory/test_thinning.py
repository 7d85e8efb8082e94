"""What is left out of a curve lies on a line; what is highest stays."""

from __future__ import annotations

import random

import pytest

from oomdoctor.analysis.memory.curve import TOLERANCE, thinned
from oomdoctor.records.job.measurement import CurvePhase, MemoryCurve


def curve(weights: list[int], others: list[int], starts: tuple[int, ...]) -> MemoryCurve:
    totals = tuple(one + other for one, other in zip(weights, others, strict=True))
    return MemoryCurve(
        events=3 * len(totals),
        event=tuple(3 * moment for moment in range(len(totals))),
        allocated_bytes=totals,
        by_category={"weights": tuple(weights), "activations": tuple(others)},
        phases=tuple(CurvePhase("first", f"phase {at}", at) for at in starts),
        peak=totals.index(max(totals)),
    )


def at(found: MemoryCurve, sizes: tuple[int, ...], event: int) -> float:
    """The size at an event, on the line between two moments."""
    after = next(place for place, own in enumerate(found.event) if own >= event)
    if found.event[after] == event:
        return sizes[after]
    low, high = found.event[after - 1], found.event[after]
    return sizes[after - 1] + (event - low) / (high - low) * (sizes[after] - sizes[after - 1])


def test_a_ramp_needs_its_ends() -> None:
    found = thinned(curve([1000] * 60, [300 * moment for moment in range(60)], (0, 20)))
    assert found.event == (0, 19 * 3, 20 * 3, 59 * 3)
    assert [phase.moment for phase in found.phases] == [0, 2]


def test_a_category_that_gives_way_to_another_stays() -> None:
    """The total is flat, but what it consists of is not."""
    weights = [1000 - 90 * abs(5 - moment) for moment in range(11)]
    found = thinned(curve(weights, [2000 - one for one in weights], (0,)))
    assert 1000 in found.by_category["weights"]


@pytest.mark.parametrize("seed", range(5))
def test_no_maximum_changes_and_lines_are_near(seed: int) -> None:
    chosen = random.Random(seed)
    weights, others = [10_000], [0]
    for _ in range(119):
        weights.append(weights[-1] + chosen.choice((0, 0, 0, 500)))
        others.append(max(0, others[-1] + chosen.choice((400, 410, -3000))))
    whole = curve(weights, others, (0, 30, 31, 90))
    found = thinned(whole)
    assert len(found.event) < len(whole.event)
    assert found.allocated_bytes[found.peak] == max(whole.allocated_bytes)
    assert found.event[found.peak] == whole.event[whole.peak]
    ends = [*(phase.moment for phase in whole.phases[1:]), 120]
    own_ends = [*(phase.moment for phase in found.phases[1:]), len(found.event)]
    for one, other, end, own in zip(whole.phases, found.phases, ends, own_ends, strict=True):
        assert (one.step, one.phase) == (other.step, other.phase)
        assert whole.event[one.moment] == found.event[other.moment]
        most = max(whole.allocated_bytes[one.moment : end])
        assert most == max(found.allocated_bytes[other.moment : own])
    near = TOLERANCE * max(whole.allocated_bytes)
    for moment, event in enumerate(whole.event):
        for name, sizes in whole.by_category.items():
            assert abs(at(found, found.by_category[name], event) - sizes[moment]) <= near + 1e-6
        assert found.rest_bytes(0) == 0
