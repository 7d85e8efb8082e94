"""Replay events through an allocator: peaks by window, and where the device runs out."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.allocator.curve import Curve
from oomdoctor.analysis.allocator.records import (
    Fragmentation,
    Mark,
    OutOfDeviceMemory,
    OutOfMemory,
    Point,
    Replay,
    Window,
)
from oomdoctor.analysis.allocator.windows import Event, stretches


def replay(
    events: Iterable[Event],
    allocator: CachingAllocator,
    marks: Iterable[Mark | tuple[int, str]] = (),
    *,
    curve_points: int = 0,
) -> Replay:
    """Play births (size above 0) and deaths (below 0) until the end or until memory runs out.

    `marks` say at which event a window begins; the peaks are reset there. `curve_points` limits
    the length of the curve; 0 leaves it out, which is faster. The allocator keeps its state, and
    blocks that are already in it count.

    Raises:
        KeyError: a block dies that is not alive.
        ValueError: the marks are not in order.
    """
    run = _Run(allocator, Curve(curve_points) if curve_points else None)
    remaining = iter(events)
    windows: list[Window] = []
    peak_allocated = peak_reserved = 0
    at_peak = Fragmentation(0, 0, 0)
    for name, count in stretches(marks):
        allocator.reset_peaks()
        run.play(islice(remaining, count))
        peak_allocated = max(peak_allocated, allocator.peak_allocated_bytes)
        peak_reserved = max(peak_reserved, allocator.peak_reserved_bytes)
        if allocator.at_reserved_peak.reserved_bytes > at_peak.reserved_bytes:
            at_peak = allocator.at_reserved_peak
        if name is not None:
            windows.append(
                Window(name, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)
            )
        if run.out_of_memory is not None:
            break
    return Replay(
        peak_allocated_bytes=peak_allocated,
        peak_reserved_bytes=peak_reserved,
        at_reserved_peak=at_peak,
        windows=tuple(windows),
        retries=allocator.retries,
        failed_at=None if run.out_of_memory is None else run.played,
        out_of_memory=run.out_of_memory,
        curve=() if run.curve is None else run.curve.points(),
    )


class _Run:
    """The state of a replay across its windows: events played, and why it ended."""

    def __init__(self, allocator: CachingAllocator, curve: Curve | None) -> None:
        self.allocator = allocator
        self.curve = curve
        self.played = 0
        self.out_of_memory: OutOfMemory | None = None

    def play(self, events: Iterable[Event]) -> None:
        allocate, free = self.allocator.allocate, self.allocator.free
        index = self.played - 1
        try:
            for index, (block, size) in enumerate(events, self.played):
                if size > 0:
                    allocate(block, size)
                else:
                    free(block)
                if self.curve is not None:
                    self.curve.add(self._point(index))
        except OutOfDeviceMemory as failure:
            self.played = index
            self.out_of_memory = failure.record
        else:
            self.played = index + 1

    def _point(self, index: int) -> Point:
        return Point(index, self.allocator.allocated_bytes, self.allocator.reserved_bytes)
