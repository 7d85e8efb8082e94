"""The life of each block of a device: when it was born and freed, how large, and by which line.

The end of a trace is known exactly, so everything is counted back from there: what a trace that
began late has not seen is what is left over.

A trace has the bytes that were requested. torch rounds them to 512, and hands out the rest of a
free block as well where it is not worth splitting off. What was free around a block is known from
its neighbours, because torch joins free neighbours at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from oomdoctor.analysis.allocator.sizes import MIN_BLOCK, SMALL_LIMIT, round_size
from oomdoctor.snapshot.reading.events import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    NO_STACK,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
)
from oomdoctor.snapshot.reading.snapshot import DeviceSnapshot

BEFORE = -1
"""The birth of a block that was there before the first event."""
_RESERVED = {SEGMENT_ALLOC: 1, SEGMENT_MAP: 1, SEGMENT_FREE: -1, SEGMENT_UNMAP: -1}


@dataclass(slots=True)
class Blocks:
    """All blocks of a device in the order of birth; all columns have one length.

    `born` and `died` are indices of events; `died` is the number of events for a block that was
    never freed. `size` is in bytes, as torch counts it (see below).

    `stack` is that of the birth. Of a block that was born before the trace and freed in it, it is
    the one that torch noted then: that of the end, or with context="alloc" again that of the birth.
    `ends_name_makers` says which, from the blocks whose birth is in the trace.
    """

    born: array[int] = field(default_factory=lambda: array("q"))
    died: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    stack: array[int] = field(default_factory=lambda: array("i"))
    ends_name_makers: bool = False

    def __len__(self) -> int:
        return len(self.born)

    def add(self, born: int, died: int, size: int, stack: int) -> int:
        """Add a block and return its index."""
        self.born.append(born)
        self.died.append(died)
        self.size.append(size)
        self.stack.append(stack)
        return len(self.born) - 1

    def maker(self, block: int, events: int) -> int:
        """The stack that made a block; `NO_STACK` if the trace of so many events begins later."""
        is_freed_later = self.born[block] == BEFORE and self.died[block] < events
        return NO_STACK if is_freed_later and not self.ends_name_makers else self.stack[block]

    def alive(self, event: int) -> list[int]:
        """The blocks that are there after an event."""
        columns = zip(self.born, self.died, strict=True)
        return [n for n, (born, died) in enumerate(columns) if born <= event < died]


@dataclass(frozen=True, slots=True)
class Lives:
    """The blocks of a device, and what was allocated and reserved after each event, in bytes.

    `began_allocated` and `began_reserved` are before the first event.
    """

    blocks: Blocks
    allocated: array[int]
    reserved: array[int]
    began_allocated: int
    began_reserved: int


def lives_of(device: DeviceSnapshot, divisions: Sequence[int] = ()) -> Lives:
    """Read the trace of a device from its first to its last event.

    `divisions` is the setting `roundup_power2_divisions`, see `round_size`.
    """
    events, blocks = device.events, Blocks()
    end = len(events)
    sizes, before = block_sizes(device, divisions)
    live: dict[int, int] = {}
    alike = others = 0  # ends that were noted with the stack of the birth, and with others
    requested: set[int] = set()  # freed by the program, but another stream still used it
    columns = zip(events.action, events.address, events.size, events.stack, strict=True)
    for at, (action, address, size, stack) in enumerate(columns):
        if action == ALLOC:
            live[address] = blocks.add(at, end, sizes[at], stack)
            requested.discard(address)
        elif action == FREE_COMPLETED and address in requested:
            requested.remove(address)
        elif action in (FREE_REQUESTED, FREE_COMPLETED):
            if action == FREE_REQUESTED:
                requested.add(address)
            block = live.pop(address, None)
            if block is None:
                blocks.add(BEFORE, at, before.pop(address, round_size(size, divisions)), stack)
            else:
                blocks.died[block] = at
                alike += stack == blocks.stack[block] != NO_STACK
                others += stack != blocks.stack[block]
    blocks.ends_name_makers = alike > others
    _end_with(device, blocks, live)
    allocated, began_allocated = _allocated(blocks, end)
    reserved, began_reserved = _reserved(device)
    return Lives(blocks, allocated, reserved, began_allocated, began_reserved)


def _end_with(device: DeviceSnapshot, blocks: Blocks, live: dict[int, int]) -> None:
    """Take over what is allocated at the end."""
    end = len(device.events)
    for segment in device.segments:
        for held in segment.blocks:
            if not held.requested or held.awaits:
                continue
            block = live.pop(held.address, None)
            if block is None:
                blocks.add(BEFORE, end, held.size, held.stack)
            else:
                blocks.size[block] = held.size


def _allocated(blocks: Blocks, end: int) -> tuple[array[int], int]:
    change = array("q", bytes(8 * (end + 1)))
    began = 0
    for born, died, size in zip(blocks.born, blocks.died, blocks.size, strict=True):
        if born == BEFORE:
            began += size
        else:
            change[born] += size
        change[died] -= size
    return _running(began, change[:end]), began


def _reserved(device: DeviceSnapshot) -> tuple[array[int], int]:
    events = device.events
    change = array("q", bytes(8 * len(events)))
    for at, (action, size) in enumerate(zip(events.action, events.size, strict=True)):
        sign = _RESERVED.get(action)
        if sign is not None:
            change[at] = sign * size
    began = sum(segment.size for segment in device.segments) - sum(change)
    return _running(began, change), began


def _running(began: int, change: array[int]) -> array[int]:
    return array("q", accumulate(change, initial=began))[1:]


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
    sizes: dict[int, int] = {}
    events = device.events
    for action, address, size in zip(events.action, events.address, events.size, strict=True):
        if action == ALLOC:
            made.add(address)
        elif action == FREE_COMPLETED and address not in made:
            sizes.setdefault(address, round_size(size, divisions))
        elif action == FREE_COMPLETED:
            made.remove(address)
    for segment in device.segments:
        for block in segment.blocks:
            if block.requested and block.address not in made:
                sizes.setdefault(block.address, block.size)
    return sizes


class _Layout:
    """The segments that are no expandable ones, and the blocks in them, by address."""

    def __init__(self, device: DeviceSnapshot, before: dict[int, int]) -> None:
        ends = {s.address: s.address + s.size for s in device.segments if not s.is_expandable}
        events = device.events
        for at in range(len(events) - 1, -1, -1):  # undo what the trace did to the segments
            if events.action[at] == SEGMENT_ALLOC:
                ends.pop(events.address[at], None)
            elif events.action[at] == SEGMENT_FREE:
                ends[events.address[at]] = events.address[at] + events.size[at]
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
