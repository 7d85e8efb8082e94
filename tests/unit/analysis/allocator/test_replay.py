"""Replays: windows, the event that fails, and the peak without the pools."""

from __future__ import annotations

import pytest

from oomdoctor.analysis.allocator.records import Mark, Window
from oomdoctor.analysis.allocator.replay import replay_order
from oomdoctor.units import MIB

# A weight, two activations of which one dies, then a temporary after everything.
EVENTS = [1, 2, 3, -2, 4, -3, -4]
SIZES = [10 * MIB, 20 * MIB, 30 * MIB, 16 * MIB]


def test_the_peaks_of_the_whole() -> None:
    seen = replay_order(EVENTS, SIZES)
    assert seen.fits and seen.failed_at is None and seen.retries == 0
    assert seen.peak_allocated_bytes == 60 * MIB
    assert seen.peak_reserved_bytes == 60 * MIB  # 16 MiB fit into the 20 that died


def test_the_peaks_of_windows_start_from_the_present() -> None:
    marks = [Mark(0, "load"), Mark(1, "forward"), Mark(4, "backward"), Mark(7, "after")]
    seen = replay_order(EVENTS, SIZES, marks)
    assert seen.windows == (
        Window("load", 10 * MIB, 10 * MIB),
        Window("forward", 60 * MIB, 60 * MIB),
        Window("backward", 56 * MIB, 60 * MIB),
        Window("after", 10 * MIB, 60 * MIB),
    )
    assert seen.peak_allocated_bytes == 60 * MIB


def test_a_cache_is_emptied_where_a_mark_says_so() -> None:
    events, sizes = [1, 2, -1, 3], [30 * MIB, 30 * MIB, 20 * MIB]
    for empties, reserved in ((False, 60 * MIB), (True, 50 * MIB)):
        seen = replay_order(events, sizes, [Mark(0, "load"), Mark(3, "step", empties)])
        assert seen.windows[-1] == Window("step", 50 * MIB, reserved)
        assert seen.peak_reserved_bytes == 60 * MIB


def test_what_comes_before_the_first_mark_counts_for_the_whole_only() -> None:
    seen = replay_order(EVENTS, SIZES, [(5, "late")])
    assert seen.windows == (Window("late", 56 * MIB, 60 * MIB),)
    assert seen.peak_allocated_bytes == 60 * MIB


def test_marks_have_to_be_in_order() -> None:
    with pytest.raises(ValueError, match="'b' at 1 is before 3"):
        replay_order(EVENTS, SIZES, [(3, "a"), (1, "b")])


def test_it_stops_at_the_event_that_fails() -> None:
    marks = [(0, "first"), (3, "second"), (5, "never")]
    seen = replay_order(EVENTS, SIZES, marks, capacity_bytes=56 * MIB)
    assert not seen.fits
    assert seen.failed_at == 2  # the third birth: 30 MiB where 26 are left
    assert seen.out_of_memory is not None
    assert seen.out_of_memory.requested_bytes == 30 * MIB
    assert seen.out_of_memory.free_bytes == 26 * MIB
    assert seen.peak_allocated_bytes == 30 * MIB
    assert [window.name for window in seen.windows] == ["first"]


def test_the_failing_event_is_counted_across_windows() -> None:
    events, sizes = [*EVENTS, 5], [*SIZES, 100 * MIB]
    seen = replay_order(events, sizes, [(2, "a"), (5, "b")], capacity_bytes=100 * MIB)
    assert seen.failed_at == 7
    assert seen.retries == 1


def test_one_byte_of_capacity_decides() -> None:
    assert replay_order(EVENTS, SIZES, capacity_bytes=60 * MIB).fits
    assert not replay_order(EVENTS, SIZES, capacity_bytes=60 * MIB - 1).fits


def test_what_is_not_worth_splitting_counts_as_allocated() -> None:
    assert replay_order([1], [11 * MIB]).peak_allocated_bytes == 12 * MIB
