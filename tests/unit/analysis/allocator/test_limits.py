"""Replays under limits and of several streams."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomdoctor.analysis.allocator.replay import replay_order
from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.units import MIB

BOUNDARIES = (0, 1, 512, 513, MIB, MIB + 1, 3 * MIB, 10 * MIB - 512, 11 * MIB, 20 * MIB, 21 * MIB)
SIZES = st.one_of(st.sampled_from(BOUNDARIES), st.integers(1, 2 * MIB), st.integers(MIB, 60 * MIB))
# At least zero: the size of a new block. Below: a live block dies, counted from the youngest.
STEPS = st.lists(st.one_of(SIZES, st.integers(-9, -1)), min_size=1, max_size=120)
SETTINGS = {
    "lowest": AllocatorSettings(),
    "oldest": AllocatorSettings(equal_blocks="oldest"),
    "oldest_segment": AllocatorSettings(equal_blocks="oldest_segment"),
    "expandable": AllocatorSettings(expandable_segments=True),
    "divisions": AllocatorSettings(roundup_power2_divisions=(4,) * 16),
}


def run_of(steps: list[int]) -> tuple[list[int], list[int]]:
    """Events, and the bytes of each block."""
    events: list[int] = []
    sizes: list[int] = []
    live: list[int] = []
    for step in steps:
        if step >= 0:
            sizes.append(step)
            live.append(len(sizes))
            events.append(len(sizes))
        elif live:
            events.append(-live.pop(step % len(live)))
    return events, sizes


@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=150)
@given(steps=STEPS, more=st.sampled_from((0, MIB, 50 * MIB)))
def test_a_limit_that_is_never_reached_changes_nothing(
    name: str, steps: list[int], more: int
) -> None:
    """So what reserves no more than the limit without one needs no replay under it."""
    events, sizes = run_of(steps)
    free = replay_order(events, sizes, settings=SETTINGS[name])
    # Expandable segments look at the limit with the size of an ordinary segment.
    page = 60 * MIB if name == "expandable" else 0
    limit = free.peak_reserved_bytes + page + more
    assert replay_order(events, sizes, settings=SETTINGS[name], limit_bytes=limit) == free


def test_a_stream_does_not_use_what_another_one_freed() -> None:
    events, sizes = [1, -1, 2], [40 * MIB, 40 * MIB]
    assert replay_order(events, sizes).peak_reserved_bytes == 40 * MIB
    assert replay_order(events, sizes, streams=[0, 0]).peak_reserved_bytes == 40 * MIB
    assert replay_order(events, sizes, streams=[0, 3]).peak_reserved_bytes == 80 * MIB


def test_a_full_device_takes_back_what_all_streams_have_cached() -> None:
    events, sizes = [1, -1, 2, 3], [40 * MIB, 30 * MIB, 30 * MIB]
    played = replay_order(events, sizes, limit_bytes=60 * MIB, streams=[1, 2, 0])
    assert played.fits
    assert played.retries == 1
