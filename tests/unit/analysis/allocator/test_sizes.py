"""Sizes by hand from `round_size`, `roundup_power2_next_division` and `get_allocation_size`."""

from __future__ import annotations

import pytest

from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.analysis.allocator.sizes import round_size, segment_size
from oomdoctor.units import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("size", "block"),
    [(1, 512), (511, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512), (4 * MIB, 4 * MIB)],
)
def test_a_block_is_a_multiple_of_512(size: int, block: int) -> None:
    assert round_size(size) == block


@pytest.mark.parametrize(
    ("rounded", "segment"),
    [
        (512, 2 * MIB),  # small blocks share segments of 2 MiB
        (MIB, 2 * MIB),  # 1 MiB is still small
        (MIB + 512, 20 * MIB),  # below 10 MiB large blocks share segments of 20 MiB
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),  # from 10 MiB on a segment of its own, in steps of 2 MiB
        (10 * MIB + 512, 12 * MIB),
        (20 * MIB, 20 * MIB),
        (GIB + 512, GIB + 2 * MIB),
    ],
)
def test_the_segment_behind_a_block(rounded: int, segment: int) -> None:
    assert segment_size(rounded) == segment


def test_a_configured_segment_serves_blocks_below_10_mib_only() -> None:
    assert segment_size(2 * MIB, 64 * MIB) == 64 * MIB
    assert segment_size(10 * MIB, 64 * MIB) == 10 * MIB
    assert segment_size(MIB, 64 * MIB) == 2 * MIB


@pytest.mark.parametrize(
    ("size", "block"),
    [
        # The example of the source, in KiB: 1200 lies between 1024 and 2048 in steps of 256.
        (1200 * KIB, 1280 * KIB),
        (1280 * KIB, 1280 * KIB),
        (1281 * KIB, 1536 * KIB),
        (2047 * KIB, 2048 * KIB),
        (2048 * KIB, 2048 * KIB),
        (2049 * KIB, 2560 * KIB),
        # No more than 512 * 4 bytes: only the 512 rule.
        (2048, 2048),
        (1900, 2048),
        (1100, 1536),
        (2049, 2560),
        (100, 512),
    ],
)
def test_four_steps_a_power_of_two(size: int, block: int) -> None:
    assert round_size(size, (4,) * 16) == block


def test_no_steps_or_one_step_is_the_512_rule() -> None:
    for steps in (0, 1):
        assert round_size(1200 * KIB + 1, (steps,) * 16) == 1200 * KIB + 512


def test_steps_by_interval() -> None:
    divisions = AllocatorSettings.parse(
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    ).roundup_power2_divisions
    assert round_size(300 * MIB, divisions) == 300 * MIB  # 256 to 512 MiB: one step, none
    assert round_size(600 * MIB, divisions) == 768 * MIB  # two steps of 256 MiB
    assert round_size(1100 * MIB, divisions) == 1280 * MIB  # four steps of 256 MiB
    assert round_size(2100 * MIB, divisions) == 2304 * MIB  # above: eight steps of 256 MiB
    assert round_size(3 * MIB + 1, divisions) == 3 * MIB + 512  # below the first, as the first
    assert round_size(200 * GIB, divisions) == 208 * GIB  # beyond 64 GiB, as the last
