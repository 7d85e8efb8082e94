"""When a training is warned: near the limit, on steady growth, and not otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oomdoctor.monitor.alerts import Alert, Alerts
from oomdoctor.monitor.readings import Reading
from oomdoctor.units import GIB, MIB

CAPACITY = 40 * GIB


def reading(allocated: float, peak: float | None = None, reserved: float | None = None) -> Reading:
    top = allocated if peak is None else peak
    kept = top if reserved is None else reserved
    return Reading(0, int(allocated), int(kept), int(top), int(kept), None, CAPACITY)


def alerts_of(
    series: Callable[[int], Reading],
    steps: int = 200,
    total_steps: int | None = None,
    collected: Callable[[int], int] | None = None,
) -> list[Alert]:
    at = 0
    alerts = Alerts(
        0.92, total_steps, lambda _: (collected or (lambda s: series(s).allocated_bytes))(at)
    )
    found: list[Alert] = []
    for at in range(1, steps + 1):
        found += alerts.look(at, at * 2.0, series(at))
    return found


def test_it_warns_near_the_limit_and_again_when_half_of_the_room_is_gone() -> None:
    peaks = {10: 0.93, 20: 0.94, 30: 0.97, 40: 0.99, 50: 1.0}
    found = alerts_of(lambda s: reading(GIB, CAPACITY * peaks.get(s, 0.5)), 60)
    assert [(a.kind, a.step) for a in found] == [("near_limit", s) for s in (10, 30, 40, 50)]
    assert "step 10 needed 37.2 GiB of the 40.0 GiB that this process can have (93%)" in (
        found[0].message
    )


def test_memory_that_torch_only_keeps_is_not_near_the_limit() -> None:
    assert not alerts_of(lambda s: reading(GIB, 20 * GIB, CAPACITY))


def test_a_leak_is_reported_with_its_slope_and_its_end() -> None:
    found = alerts_of(lambda s: reading(20 * GIB + 100 * MIB * s, 22 * GIB + 100 * MIB * s), 170)
    assert {a.kind for a in found} == {"growth", "near_limit"}
    first, again = (a for a in found if a.kind == "growth")
    assert first.step == 18
    assert first.bytes_per_step == pytest.approx(100 * MIB)
    assert first.full_at_step == pytest.approx(18 * GIB / (100 * MIB), abs=1)
    assert "has grown by 100 MiB per step since step 3" in first.message
    assert "run out at about step 184, in 5 min 3" in first.message
    # Once more when a quarter of the steps is left.
    assert (again.full_at_step - again.step) * 4 <= first.full_at_step - first.step
    assert again.full_at_step == first.full_at_step


def test_a_slow_leak_is_reported_later_than_a_fast_one() -> None:
    steps = [
        alerts_of(lambda s, mib=mib: reading(20 * GIB + mib * MIB * s), 2000)[0].step
        for mib in (100, 10, 2)
    ]
    assert steps == sorted(steps)
    assert steps[-1] < 300


def test_enough_memory_for_the_whole_training_is_said() -> None:
    found = alerts_of(lambda s: reading(20 * GIB + 10 * MIB * s), 100, total_steps=150)
    assert "last for all 150 steps" in found[0].message


def test_memory_that_garbage_collection_frees_is_no_leak() -> None:
    # Python collects by itself every 600 steps.
    def series(step: int) -> Reading:
        return reading(20 * GIB + 100 * MIB * (step % 600 // 6))

    found = alerts_of(series, 3000, collected=lambda _: 20 * GIB)
    assert [a.kind for a in found] == ["cycles"]
    assert "gc.collect()" in found[0].message


def test_garbage_beside_a_leak_does_not_hide_it() -> None:
    found = alerts_of(
        lambda s: reading(10 * GIB + 100 * MIB * s),
        100,
        collected=lambda s: 10 * GIB + 90 * MIB * s,
    )
    assert [a.kind for a in found][:1] == ["growth"]


def test_steps_that_need_more_and_more_are_no_leak() -> None:
    found = alerts_of(lambda s: reading(GIB, 10 * GIB + 100 * MIB * s), 100)
    assert {a.kind for a in found} == {"larger_steps"}


def test_fragmentation_is_not_called_a_leak() -> None:
    found = alerts_of(lambda s: reading(GIB, 10 * GIB, 11 * GIB + 100 * MIB * s), 100)
    assert {a.kind for a in found} == {"fragmentation"}
    assert "expandable_segments" in found[0].message
