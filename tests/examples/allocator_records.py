"""Replay recorded runs (`tests/data/allocator_traces`) through the model of the allocator."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.allocator.device import CHUNK, AddressSpace, Device
from oomdoctor.analysis.allocator.pool import Block
from oomdoctor.analysis.allocator.settings import AllocatorSettings, EqualBlocks
from oomdoctor.units import MIB

FOLDER = Path(__file__).parents[1] / "data" / "allocator_traces"
NAMES = tuple(sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.gz")))
ALLOC, FREE, FREE_REQUESTED, NEW, GIVEN_BACK, MAPPED, UNMAPPED, OUT_OF_MEMORY = range(8)
BASE = 2**50  # added to recorded addresses, so that there is room below them


class Event(NamedTuple):
    index: int
    action: int
    address: int
    size: int
    stream: int


class Given(AddressSpace):
    """The addresses of the record, in its order."""

    def __init__(self, addresses: Iterator[int]) -> None:
        self._addresses = addresses

    def place(self, size: int) -> int:
        return next(self._addresses)

    def remove(self, address: int, size: int) -> None:
        pass


class Below(AddressSpace):
    """Our addresses, below the segments that the record begins with."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._began = {row[0] for row in record.initial}
        if record.initial:
            self._free = [(0, record.initial[0][0] // CHUNK * CHUNK)]

    def remove(self, address: int, size: int) -> None:
        if address not in self._began:
            super().remove(address, size)
        self._began.discard(address)


class Refusing(Device):
    """A device that is full when the record says so: `refuse` is set before such a request."""

    def __init__(self, addresses: AddressSpace) -> None:
        super().__init__(None, addresses)
        self.refuse = False

    def take(self, size: int) -> bool:
        refused, self.refuse = self.refuse, False
        return not refused and super().take(size)


class Record:
    """One recorded run."""

    def __init__(
        self, name: str, folder: Path = FOLDER, equal_blocks: EqualBlocks = "lowest"
    ) -> None:
        document: dict[str, Any] = json.loads(
            gzip.decompress((folder / f"{name}.json.gz").read_bytes())
        )
        self.initial = [[row[0] + BASE, *row[1:]] for row in document["initial"]]
        parsed = AllocatorSettings.parse(document["settings"])
        self.settings = replace(parsed, equal_blocks=equal_blocks)
        self.reserved_bytes: int = document["reserved_bytes"]
        rows = enumerate(zip(*document["events"], strict=True))
        self.events = [
            Event(at, action, address + BASE, size, stream)
            for at, (action, address, size, stream) in rows
        ]
        self.retried = set(document["retries"])

    @property
    def streams(self) -> tuple[int, ...]:
        found = {event.stream for event in self.events} | {row[2] for row in self.initial}
        return tuple(sorted(found))

    def recorded_peak(self) -> int:
        """The most bytes that were reserved."""
        return max(self._began_with(), *(reserved for _, reserved in self._reserved()))

    def reserved_after_allocs(self) -> Iterator[int]:
        """The reserved bytes after each allocation."""
        return (reserved for event, reserved in self._reserved() if event.action == ALLOC)

    def _reserved(self) -> Iterator[tuple[Event, int]]:
        signs = {NEW: 1, MAPPED: 1, GIVEN_BACK: -1, UNMAPPED: -1}
        reserved = self._began_with()
        for event in self.events:
            reserved += signs.get(event.action, 0) * event.size
            yield event, reserved

    def _began_with(self) -> int:
        return sum(row[1] for row in self.initial)

    def new_segments(self) -> Iterator[int]:
        """The addresses that the driver gave, of expandable segments their first."""
        if not self.settings.expandable_segments:
            yield from (event.address for event in self.events if event.action == NEW)
            return
        started: set[bool] = set()
        for event, following in zip(self.events, self.events[1:], strict=False):
            small = following.size <= MIB
            if event.action == MAPPED and small not in started:
                started.add(small)
                yield event.address


class Run:
    """A record played through one allocator for each stream, all on one device.

    `placed` is called with every allocation and the address of its block.
    """

    def __init__(self, record: Record, addresses: AddressSpace) -> None:
        self.record = record
        self.device = Refusing(addresses)
        self.allocators = {
            stream: CachingAllocator(settings=record.settings, device=self.device)
            for stream in record.streams
        }
        self.block_of: dict[int, tuple[int, int]] = {}  # recorded address -> (stream, number)
        self._made = 0
        for address, size, stream, small, _, blocks in record.initial:
            self._adopt(self.allocators[stream], address, size, small, blocks, stream)

    def _adopt(
        self,
        allocator: CachingAllocator,
        address: int,
        size: int,
        small: int,
        blocks: list[int],
        stream: int,
    ) -> None:
        assert self.device.take(size)
        pool = allocator._small if small else allocator._large
        block = Block(address, size, pool)
        pool.segments[address] = block
        for block_size, requested in zip(blocks[::2], blocks[1::2], strict=False):
            rest = block.cut(block_size) if block_size < block.size else None
            if requested:
                self._keep(allocator, stream, block)
            else:
                pool.add(block)
            if rest is not None:
                block = rest

    def _keep(self, allocator: CachingAllocator, stream: int, block: Block) -> None:
        allocator._live[self._made] = block
        allocator.allocated_bytes += block.size
        self.block_of[block.address] = (stream, self._made)
        self._made += 1

    def play(self, placed: Callable[[Event, int], None] = lambda event, address: None) -> None:
        refused = emptied = False
        for event in self.record.events:
            if event.action in (GIVEN_BACK, UNMAPPED):
                by_request = event.index in self.record.retried
                if not by_request and not emptied:
                    for allocator in self.allocators.values():
                        allocator.empty_cache()
                refused, emptied = refused or by_request, emptied or not by_request
            else:
                emptied = False
            if event.action == ALLOC:
                if refused:
                    self._make_room(event)
                self._allocate(event, placed)
                refused = False
            elif event.action == FREE:
                stream, number = self.block_of.pop(event.address)
                self.allocators[stream].free(number)

    def _make_room(self, event: Event) -> None:
        """The device refuses once. The allocator of the request empties its own cache itself."""
        self.device.refuse = True
        for stream, allocator in self.allocators.items():
            if stream != event.stream:
                allocator.empty_cache()

    def _allocate(self, event: Event, placed: Callable[[Event, int], None]) -> None:
        allocator = self.allocators[event.stream]
        allocator.allocate(self._made, event.size)
        self.block_of[event.address] = (event.stream, self._made)
        placed(event, allocator._live[self._made].address)
        self._made += 1
