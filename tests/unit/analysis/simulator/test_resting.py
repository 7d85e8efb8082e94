"""What a step leaves on the device, once the cache is emptied."""

from __future__ import annotations

from layout_make import layout

from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.analysis.simulator.sizes import played
from oomdoctor.units import KIB, MIB


def test_what_stays_holds_its_segment_open() -> None:
    once = played(layout(), AllocatorSettings())
    # Weights, states and a workspace of 512 bytes are left of 2 MiB.
    assert once.resting.peak_allocated_bytes == 2 * KIB
    assert once.resting.peak_reserved_bytes == 2 * MIB
    assert set(once.steps) == {"first", "steady"}
