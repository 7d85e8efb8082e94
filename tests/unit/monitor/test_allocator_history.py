"""The allocator's trace: peaks by step, a thinned curve, and events that can be replayed."""

from __future__ import annotations

from typing import Any

from oomdoctor.monitor.inside.allocator_history import Curve, History


def _entry(action: str, address: int, size: int, at_us: int = 0, stream: int = 0) -> dict[str, Any]:
    frames = [{"filename": "train.py", "line": at_us, "name": "step"}]
    found = {"action": action, "addr": address, "size": size, "stream": stream, "time_us": at_us}
    return {**found, "frames": frames}


def test_blocks_count_in_units_of_512_bytes() -> None:
    history = History(0)
    history.read([_entry("alloc", 1, 100), _entry("alloc", 2, 513)], 0)
    assert history.allocated == 512 + 1024


def test_the_peak_keeps_its_moment_and_its_stack() -> None:
    history = History(0)
    history.read(
        [
            _entry("alloc", 1, 1024, 10),
            _entry("alloc", 2, 2048, 20),
            _entry("free_requested", 2, 2048, 30),
            _entry("free_completed", 2, 2048, 30),
            _entry("alloc", 3, 512, 40),
        ],
        0,
    )
    assert (history.peak.allocated_bytes, history.peak.at_us) == (3072, 20)
    assert history.peak.frames[0]["line"] == 20


def test_each_step_has_its_peaks() -> None:
    history = History(0)
    history.read(
        [_entry("segment_alloc", 1, 4096), _entry("alloc", 1, 4096), _entry("alloc", 2, 512)], 1
    )
    history.read([_entry("free_completed", 1, 4096), _entry("segment_free", 1, 4096)], 1)
    assert (history.step_allocated, history.step_reserved) == (4608, 4096)
    history.begin_step()
    history.read([_entry("alloc", 3, 1024)], 2)
    assert (history.step_allocated, history.step_reserved) == (1536, 0)


def test_an_address_that_is_used_again_is_another_block() -> None:
    history = History(0)
    history.read(
        [
            _entry("alloc", 1, 700, stream=7),
            _entry("free_completed", 1, 700, stream=7),
            _entry("alloc", 1, 300),
            _entry("free_completed", 9, 300),  # allocated before the trace began
        ],
        0,
    )
    assert list(history.blocks) == [1, 1, 2]
    assert list(history.sizes) == [700, -1024, 300]
    assert list(history.streams) == [7, 7, 0]


def test_a_long_curve_is_thinned_and_keeps_its_peak() -> None:
    curve = Curve()
    for at in range(100_000):
        curve.add(at, 0, 10_000 if at == 54_321 else at % 100, 0)
    assert len(curve.points) <= 400
    assert max(point[2] for point in curve.points) == 10_000
    times = [point[0] for point in curve.points]
    assert times == sorted(times)
