"""Memory that is reserved but not allocated, and what expandable segments would have saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from oomdoctor.analysis.allocator import AllocatorSettings, CachingAllocator
from oomdoctor.analysis.allocator.replay import replay
from oomdoctor.records.snapshot import SnapshotFragmentation
from oomdoctor.snapshot.blocks import BEFORE, Lives
from oomdoctor.snapshot.reading.snapshot import DeviceSnapshot, HeldSegment

_AGREES = 0.02  # of the reserved peak


def fragmentation_of(
    device: DeviceSnapshot, lives: Lives, settings: AllocatorSettings
) -> SnapshotFragmentation:
    """The fragmentation at the end, and the reserved peak of a replay with expandable segments."""
    free = [gap for segment in device.segments for gap in _free(segment)]
    held_open = sum(
        sum(_free(segment))
        for segment in device.segments
        if any(block.requested for block in segment.blocks)
    )
    return SnapshotFragmentation(
        free_in_segments_bytes=sum(free),
        largest_free_bytes=max(free, default=0),
        held_open_bytes=held_open,
        with_expandable_segments_bytes=_with_expandable(lives, settings),
    )


def _free(segment: HeldSegment) -> Iterator[int]:
    return (block.size for block in segment.blocks if not block.requested)


def _with_expandable(lives: Lives, settings: AllocatorSettings) -> int | None:
    peak = max(lives.reserved, default=0)
    if not peak or settings.expandable_segments or lives.began_reserved:
        return None
    as_it_was = _replayed(lives, settings)
    if abs(as_it_was - peak) > _AGREES * peak:
        return None
    return _replayed(lives, replace(settings, expandable_segments=True))


def _replayed(lives: Lives, settings: AllocatorSettings) -> int:
    return replay(_events(lives), CachingAllocator(None, settings)).peak_reserved_bytes


def _events(lives: Lives) -> Iterator[tuple[int, int]]:
    """Births and deaths in order; those of one event are a birth or a death."""
    blocks, end = lives.blocks, len(lives.allocated)
    moments = [
        (born, n + 1, size)
        for n, (born, size) in enumerate(zip(blocks.born, blocks.size, strict=True))
    ]
    moments += [
        (died, n + 1, -size)
        for n, (died, size) in enumerate(zip(blocks.died, blocks.size, strict=True))
        if died < end
    ]
    moments.sort(key=lambda moment: moment[0])
    return ((block, size) for at, block, size in moments if at >= BEFORE)
