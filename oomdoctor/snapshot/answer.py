"""From a snapshot to what a report says of each device."""

from __future__ import annotations

from contextlib import suppress

from oomdoctor.analysis.allocator import AllocatorSettings
from oomdoctor.records.snapshot import SnapshotDevice, SnapshotOom, SnapshotPeak
from oomdoctor.snapshot.blocks import BEFORE, Lives, lives_of
from oomdoctor.snapshot.categories import Categories
from oomdoctor.snapshot.composition import composition, place
from oomdoctor.snapshot.fragmentation import fragmentation_of
from oomdoctor.snapshot.growth import growth_of
from oomdoctor.snapshot.phases import Meanings, optimizer_steps
from oomdoctor.snapshot.reading.events import (
    ALLOC,
    NO_STACK,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Events,
)
from oomdoctor.snapshot.reading.snapshot import DeviceSnapshot, Snapshot


def settings_of(snapshot: Snapshot) -> AllocatorSettings:
    """The settings of the allocator that wrote a snapshot; the defaults if it does not say."""
    text = snapshot.settings.get("PYTORCH_CUDA_ALLOC_CONF")
    if isinstance(text, str):
        with suppress(ValueError):
            return AllocatorSettings.parse(text)
    return AllocatorSettings(
        expandable_segments=snapshot.settings.get("expandable_segments") is True
    )


def device_of(snapshot: Snapshot, device: DeviceSnapshot) -> SnapshotDevice:
    """The answer about one device."""
    settings = settings_of(snapshot)
    lives, events = lives_of(device, settings.roundup_power2_divisions), device.events
    meanings = Meanings(snapshot.stacks, events)
    steps = optimizer_steps(device, meanings)
    categories = Categories(lives, meanings, steps)
    at = _peak(lives)
    end = len(events) - 1
    traced = any(action == ALLOC for action in events.action)

    def held(event: int) -> SnapshotPeak:
        return composition(lives, events, meanings, categories, steps, event)

    return SnapshotDevice(
        index=device.index,
        allocated_bytes=lives.allocated[-1] if len(events) else lives.began_allocated,
        reserved_bytes=sum(segment.size for segment in device.segments),
        peak_allocated_bytes=max(lives.began_allocated, *lives.allocated) if traced else None,
        peak_reserved_bytes=max(lives.began_reserved, *lives.reserved) if traced else None,
        events=len(events),
        truncated=lives.began_reserved > 0,
        has_stacks=meanings.has_frames,
        steps=len(steps),
        peak=held(at) if traced else None,
        at_end=held(end),
        fragmentation=fragmentation_of(device, lives, settings),
        retries=_retries(events, lives),
        oom=_oom(events, lives, meanings),
        growth=growth_of(lives, meanings, steps),
    )


def _peak(lives: Lives) -> int:
    """The first event after which most is allocated."""
    allocated = lives.allocated
    at = max(range(len(allocated)), key=allocated.__getitem__, default=BEFORE)
    return at if at == BEFORE or allocated[at] >= lives.began_allocated else BEFORE


def _retries(events: Events, lives: Lives) -> int:
    """Requests that failed at first, so that cached memory was given back.

    With what it gives back then, torch notes the stack of the request. Before torch 2.2 it notes
    none; then the request would have led to more than was ever reached.
    """
    retries, peak = 0, max(lives.reserved, default=0)
    first: int | None = None  # of the events that gave memory back
    for at, action in enumerate(events.action):
        if action in (SEGMENT_FREE, SEGMENT_UNMAP):
            first = at if first is None else first
            continue
        if first is not None and action in (SEGMENT_ALLOC, SEGMENT_MAP, OOM):
            noted = events.stack[at - 1]
            had = lives.reserved[first - 1] if first else lives.began_reserved
            too_much = had + events.size[at] > peak
            retries += too_much if noted == NO_STACK else noted == events.stack[at]
        first = None
    return retries


def _oom(events: Events, lives: Lives, meanings: Meanings) -> SnapshotOom | None:
    at = next((n for n in range(len(events) - 1, -1, -1) if events.action[n] == OOM), None)
    if at is None:
        return None
    meaning = meanings.of(events.stack[at])
    return SnapshotOom(
        requested_bytes=events.size[at],
        free_bytes=events.address[at],
        allocated_bytes=lives.allocated[at],
        reserved_bytes=lives.reserved[at],
        phase=meaning.phase,
        where=place(meaning.where or meaning.line),
    )
