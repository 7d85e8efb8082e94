"""How large each block really was, from where the blocks lay.

A trace has the bytes that were requested. torch rounds them to 512, and hands out the rest of a
free block as well where it is not worth splitting off. What was free around a block is known from
its neighbours, because torch joins free neighbours at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from oomdoctor.analysis.allocator.sizes import MIN_BLOCK, SMALL_LIMIT, round_size
from oomdoctor.snapshot.reading.events import (
    ALLOC,
    FREE_COMPLETED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    Events,
)
from oomdoctor.snapshot.reading.snapshot import DeviceSnapshot


def block_sizes(
    device: DeviceSnapshot, divisions: Sequence[int]
) -> tuple[array[int], dict[int, int]]:
    """Bytes of the block of each allocation of a trace (0 for other events), and of each block
    that was there before, by address.

    `divisions` is the setting `roundup_power2_divisions`, see `round_size`.
    """
    events = device.events
    sizes = array("q", bytes(8 * len(events)))
    before = _before(device, divisions)
    layout = _Layout(device, before)
    columns = zip(events.action, events.address, events.size, strict=True)
    for at, (action, address, size) in enumerate(columns):
        if action == ALLOC:
            sizes[at] = layout.allocated(address, round_size(size, divisions))
        elif action == FREE_COMPLETED:
            layout.freed(address)
        elif action == SEGMENT_ALLOC:
            layout.add(address, size)
        elif action == SEGMENT_FREE:
            layout.remove(address)
    return sizes, before


def _before(device: DeviceSnapshot, divisions: Sequence[int]) -> dict[int, int]:
    """The blocks before the first event, by address, with their rounded bytes."""
    made: set[int] = set()
    found: dict[int, int] = {}
    events = device.events
    for action, address, size in zip(events.action, events.address, events.size, strict=True):
        if action == ALLOC:
            made.add(address)
        elif action == FREE_COMPLETED and address not in made:
            found.setdefault(address, round_size(size, divisions))
        elif action == FREE_COMPLETED:
            made.remove(address)
    for segment in device.segments:
        for block in segment.blocks:
            if block.requested and block.address not in made:
                found.setdefault(block.address, block.size)
    return found


class _Layout:
    """The segments that are no expandable ones, and the blocks in them, by address."""

    def __init__(self, device: DeviceSnapshot, before: dict[int, int]) -> None:
        ends = {s.address: s.address + s.size for s in device.segments if not s.is_expandable}
        _walk_back(device.events, ends)
        self._ends = ends
        self._segments = sorted(ends)
        self._blocks = sorted(before)
        for address in self._blocks:
            before[address] = self._with_rest(address, before[address])

    def add(self, address: int, size: int) -> None:
        if address not in self._ends:
            insort(self._segments, address)
        self._ends[address] = address + size

    def remove(self, address: int) -> None:
        if self._ends.pop(address, None) is not None:
            self._segments.pop(bisect_left(self._segments, address))

    def allocated(self, address: int, size: int) -> int:
        """Add a block with its rounded bytes; returns those with the rest."""
        insort(self._blocks, address)
        return self._with_rest(address, size)

    def freed(self, address: int) -> None:
        at = bisect_left(self._blocks, address)
        if at < len(self._blocks) and self._blocks[at] == address:
            self._blocks.pop(at)

    def _with_rest(self, address: int, size: int) -> int:
        at = bisect_right(self._segments, address) - 1
        if at < 0:
            return size
        start = self._segments[at]
        end = self._ends[start]
        if address >= end:
            return size
        following = bisect_right(self._blocks, address)
        if following < len(self._blocks):
            end = min(end, self._blocks[following])
        rest = end - address - size
        worth = MIN_BLOCK if size <= SMALL_LIMIT else SMALL_LIMIT + 1
        return size + rest if 0 < rest < worth else size


def _walk_back(events: Events, ends: dict[int, int]) -> None:
    """Undo what the trace did to the segments."""
    for at in range(len(events) - 1, -1, -1):
        action = events.action[at]
        if action == SEGMENT_ALLOC:
            ends.pop(events.address[at], None)
        elif action == SEGMENT_FREE:
            ends[events.address[at]] = events.address[at] + events.size[at]
