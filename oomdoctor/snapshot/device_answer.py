"""From a snapshot to what a report says of each device."""

from __future__ import annotations

from collections.abc import Iterator

from oomdoctor.records.inside.snapshot import (
    SnapshotDevice,
    SnapshotFragmentation,
    SnapshotOom,
    SnapshotRetries,
)
from oomdoctor.snapshot.blocks import BEFORE, Lives
from oomdoctor.snapshot.composition import composition, place
from oomdoctor.snapshot.growth.growth_answer import growth_of
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.reading.events import ALLOC, OOM, Events
from oomdoctor.snapshot.reading.snapshot import HeldSegment
from oomdoctor.snapshot.replay.replays import Runs, order_of, releases_of


def device_of(history: History) -> SnapshotDevice:
    """The answer about one device."""
    device, lives, meanings = history.device, history.lives, history.meanings
    events = device.events
    oom = _oom(history)
    retries = retries_of(events, lives)
    capacity = None if oom is None else oom.reserved_bytes + oom.free_bytes
    growth = growth_of(history, capacity)
    traced = any(action == ALLOC for action in events.action)
    return SnapshotDevice(
        index=device.index,
        allocated_bytes=lives.allocated[-1] if len(events) else lives.began_allocated,
        reserved_bytes=sum(segment.size for segment in device.segments),
        peak_allocated_bytes=max(lives.began_allocated, max(lives.allocated)) if traced else None,
        peak_reserved_bytes=max(lives.began_reserved, max(lives.reserved)) if traced else None,
        events=len(events),
        truncated=lives.began_reserved > 0,
        has_stacks=meanings.has_frames,
        steps=len(history.steps),
        peak=composition(history, _peak(lives)) if traced else None,
        at_end=composition(history, history.last_event),
        fragmentation=fragmentation_of(history),
        retries=0 if retries is None else retries.count,
        retry_cost=retries,
        oom=oom,
        growth=growth[0] if growth else None,
        more_growth=growth[1:],
    )


def _peak(lives: Lives) -> int:
    """The first event after which most is allocated."""
    allocated = lives.allocated
    at = max(range(len(allocated)), key=allocated.__getitem__, default=BEFORE)
    return at if at == BEFORE or allocated[at] >= lives.began_allocated else BEFORE


def _oom(history: History) -> SnapshotOom | None:
    events, lives, meanings = history.device.events, history.lives, history.meanings
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
        held=composition(history, at),
    )


def fragmentation_of(history: History) -> SnapshotFragmentation:
    """The fragmentation at the end, and the reserved peak of a replay with expandable segments."""
    device = history.device
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
        with_expandable_segments_bytes=_with_expandable(history),
    )


def _free(segment: HeldSegment) -> Iterator[int]:
    return (block.size for block in segment.blocks if not block.requested)


def _with_expandable(history: History) -> int | None:
    lives = history.lives
    if not max(lives.reserved, default=0):
        return None
    if history.settings.expandable_segments or lives.began_reserved:
        return None
    runs = Runs(history, order_of(history))
    return runs.needed(expandable=True) if runs.note is None and runs.can() else None


def retries_of(events: Events, lives: Lives) -> SnapshotRetries | None:
    """How often, what was given back, and how long that took; None if it never happened."""
    found = [(one.event, one.after) for one in releases_of(events, lives) if one.is_retry]
    if not found:
        return None
    released = sum(events.size[at] for first, end in found for at in range(first, end))
    timed = all(events.at_us[first] >= 0 for first, _ in found)
    spent = sum(events.at_us[end] - events.at_us[first] for first, end in found) / 1e6
    return SnapshotRetries(len(found), released, spent if timed else None)
