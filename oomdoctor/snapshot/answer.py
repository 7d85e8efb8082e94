"""From a snapshot to what a report says of each device."""

from __future__ import annotations

from oomdoctor.records.inside.snapshot import SnapshotDevice, SnapshotOom
from oomdoctor.snapshot.blocks import BEFORE, Lives
from oomdoctor.snapshot.composition import composition, place
from oomdoctor.snapshot.fragmentation import fragmentation_of
from oomdoctor.snapshot.growth.growth_answer import growth_of
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.reading.events import ALLOC, OOM
from oomdoctor.snapshot.retries import retries_of


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
