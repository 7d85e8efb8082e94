"""Memory that is reserved but not allocated, and what expandable segments would have saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from oomdoctor.analysis.allocator import AllocatorSettings, CachingAllocator
from oomdoctor.analysis.allocator.replay import replay
from oomdoctor.records.snapshot import SnapshotFragmentation
from oomdoctor.snapshot.blocks import Lives
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
        with_expandable_segments_bytes=_with_expandable(device, lives, settings),
    )


def _free(segment: HeldSegment) -> Iterator[int]:
    return (block.size for block in segment.blocks if not block.requested)


def _with_expandable(
    device: DeviceSnapshot, lives: Lives, settings: AllocatorSettings
) -> int | None:
    peak = max(lives.reserved, default=0)
    if not peak or settings.expandable_segments or lives.began_reserved:
        return None
    events = _requests(device, lives)
    as_it_was = replay(events, CachingAllocator(None, settings)).peak_reserved_bytes
    if abs(as_it_was - peak) > _AGREES * peak:
        return None
    expandable = replace(settings, expandable_segments=True)
    return replay(events, CachingAllocator(None, expandable)).peak_reserved_bytes


def _requests(device: DeviceSnapshot, lives: Lives) -> list[tuple[int, int]]:
    """Births and deaths in order, with the bytes that were requested."""
    blocks, end = lives.blocks, len(device.events)
    moments = []
    for block, (born, died) in enumerate(zip(blocks.born, blocks.died, strict=True), start=1):
        size = device.events.size[born]
        moments.append((born, block, size))
        if died < end:
            moments.append((died, block, -size))
    moments.sort()
    return [(block, size) for _, block, size in moments if size]
