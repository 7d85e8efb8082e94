"""The life of each block of a device: when it was born and freed, how large, and by which line.

The end of a trace is known exactly, so everything is counted back from there: what a trace that
began late has not seen is what is left over.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from oomdoctor.analysis.allocator.sizes import round_size
from oomdoctor.snapshot.layout import block_sizes
from oomdoctor.snapshot.reading.events import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
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
    never freed. `size` is in bytes, as torch counts it (see `layout`).
    """

    born: array[int] = field(default_factory=lambda: array("q"))
    died: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    stack: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.born)

    def add(self, born: int, died: int, size: int, stack: int) -> int:
        """Add a block and return its index."""
        self.born.append(born)
        self.died.append(died)
        self.size.append(size)
        self.stack.append(stack)
        return len(self.born) - 1

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
    total, totals = began, array("q")
    for step in change:
        total += step
        totals.append(total)
    return totals
