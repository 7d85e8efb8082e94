"""The sizes of the caching allocator: blocks, the segments they come from, pages."""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.units import MIB

MIN_BLOCK = 512  # kMinBlockSize: every block is a multiple of this
SMALL_LIMIT = MIB  # kSmallSize: the largest block of the small pool
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
LARGE_SEGMENT = 20 * MIB  # large_segment_size(), before that kLargeBuffer
OWN_SEGMENT = 10 * MIB  # kMinLargeAlloc: from this size on, a block gets its own segment
SEGMENT_ROUNDING = 2 * MIB  # kRoundLarge
ROUNDUP_INTERVALS = 16  # of roundup_power2_divisions: 1 MiB, 2 MiB, ... 32 GiB and above
_FIRST_INTERVAL = MIB.bit_length() - 1


def round_size(size: int, divisions: Sequence[int] = ()) -> int:
    """Bytes of the block for a tensor of `size` bytes (`round_size`).

    `divisions` has for each of `ROUNDUP_INTERVALS` the number of steps in a power of two; the size
    is rounded up to the next step. Empty, or 0 or 1 for the interval: no such rounding.
    """
    if divisions and size >= MIN_BLOCK:
        interval = max(size.bit_length() - 1 - _FIRST_INTERVAL, 0)
        steps = divisions[min(interval, ROUNDUP_INTERVALS - 1)]
        if steps > 1 and size > MIN_BLOCK * steps:
            return _next_step(size, steps)
    return max(1, -(-size // MIN_BLOCK)) * MIN_BLOCK


def segment_size(rounded: int, large_segment: int = LARGE_SEGMENT) -> int:
    """Bytes requested from the device if no cached block is usable (`get_allocation_size`)."""
    if rounded <= SMALL_LIMIT:
        return SMALL_SEGMENT
    if rounded < OWN_SEGMENT:
        return large_segment
    return -(-rounded // SEGMENT_ROUNDING) * SEGMENT_ROUNDING


def _next_step(size: int, steps: int) -> int:
    """The size rounded up in its power of two (`roundup_power2_next_division`).

    Only sizes above 512 * steps get here, so a step is a multiple of 512.
    """
    step = (1 << (size.bit_length() - 1)) // steps
    return -(-size // step) * step
