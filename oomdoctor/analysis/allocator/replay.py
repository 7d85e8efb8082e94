"""Replay events through an allocator: peaks by window, and where the device runs out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap

from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.allocator.records import (
    Mark,
    OutOfDeviceMemory,
    OutOfMemory,
    Replay,
    Window,
)
from oomdoctor.analysis.allocator.settings import AllocatorSettings

_DEFAULTS = AllocatorSettings()


def replay_order(
    events: Sequence[int],
    sizes: Sequence[int],
    marks: Iterable[Mark | tuple[int, str]] = (),
    settings: AllocatorSettings = _DEFAULTS,
    limit_bytes: int | None = None,
    streams: Sequence[int] | None = None,
    capacity_bytes: int | None = None,
) -> Replay:
    """Replay `+(i + 1)`, the birth of block i of `sizes`, and `-(i + 1)`, its death, on a new
    allocator, until the end or until memory runs out.

    Blocks of 0 bytes are passed over, but counted. `marks` say at which event a window begins; the
    peaks are reset there, and the cache is emptied if the mark says so. `limit_bytes` is the most
    the process may reserve, `capacity_bytes` what the device has for it. `streams` has the stream
    that allocates each block, if there are others than the default one.

    Raises:
        KeyError: a block dies that is not alive.
        ValueError: the marks are not in order.
    """
    allocator = CachingAllocator(capacity_bytes, settings, limit_bytes=limit_bytes)
    run = _Run(allocator, events, sizes, streams)
    windows: list[Window] = []
    peak_allocated = peak_reserved = 0
    for name, count, empties in stretches(marks):
        if empties:
            allocator.empty_cache()
        allocator.reset_peaks()
        run.play(count)
        peak_allocated = max(peak_allocated, allocator.peak_allocated_bytes)
        peak_reserved = max(peak_reserved, allocator.peak_reserved_bytes)
        if name is not None:
            peaks = allocator.peak_allocated_bytes, allocator.peak_reserved_bytes
            windows.append(Window(name, *peaks))
        if run.out_of_memory is not None:
            break
    return Replay(
        peak_allocated_bytes=peak_allocated,
        peak_reserved_bytes=peak_reserved,
        windows=tuple(windows),
        retries=allocator.retries,
        failed_at=None if run.out_of_memory is None else run.played,
        out_of_memory=run.out_of_memory,
    )


@dataclass(slots=True)
class _Run:
    """A replay across its windows: how far it came, why it ended."""

    allocator: CachingAllocator
    events: Sequence[int]
    sizes: Sequence[int]
    streams: Sequence[int] | None
    played: int = 0
    out_of_memory: OutOfMemory | None = None

    def play(self, count: int | None) -> None:
        """Play the next `count` events, or all."""
        sizes, streams = self.sizes, self.streams
        allocate, free = self.allocator.allocate, self.allocator.free
        played = self.played
        end = len(self.events) if count is None else played + count
        try:
            for event in self.events[played:end]:
                if event > 0:
                    block = event - 1
                    if size := sizes[block]:
                        allocate(block, size, streams[block] if streams else 0)
                else:
                    block = -event - 1
                    if sizes[block]:
                        free(block)
                played += 1
        except OutOfDeviceMemory as failure:
            self.out_of_memory = failure.record
        finally:
            self.played = played


def stretches(
    marks: Iterable[Mark | tuple[int, str]],
) -> Iterator[tuple[str | None, int | None, bool]]:
    """The windows in order: name, number of events, and whether the cache is emptied before.

    None as a number means until the end. The events before the first mark have no name.

    Raises:
        ValueError: the marks are not in order.
    """
    name: str | None = None
    start, empties = 0, False
    for mark in starmap(Mark, marks):
        if mark.event < start:
            raise ValueError(f"the mark {mark.name!r} at {mark.event} is before {start}")
        yield name, mark.event - start, empties
        name, start, empties = mark.name, mark.event, mark.empties
    yield name, None, empties
