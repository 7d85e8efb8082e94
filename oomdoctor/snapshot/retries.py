"""Requests that failed at first, so that torch gave cached memory back and asked again."""

from __future__ import annotations

from collections.abc import Iterator

from oomdoctor.records.snapshot import SnapshotRetries
from oomdoctor.snapshot.blocks import Lives
from oomdoctor.snapshot.reading.events import (
    NO_STACK,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Events,
)


def retries_of(events: Events, lives: Lives) -> SnapshotRetries | None:
    """How often, what was given back, and how long that took; None if it never happened."""
    found = list(_retries(events, lives))
    if not found:
        return None
    released = sum(events.size[at] for first, end in found for at in range(first, end))
    timed = all(events.at_us[first] >= 0 for first, _ in found)
    spent = sum(events.at_us[end] - events.at_us[first] for first, end in found) / 1e6
    return SnapshotRetries(len(found), released, spent if timed else None)


def _retries(events: Events, lives: Lives) -> Iterator[tuple[int, int]]:
    """The first event that gave memory back, and the request that then was met or failed.

    With what it gives back then, torch notes the stack of the request. Before torch 2.2 it notes
    none; then the request would have led to more than was ever reached.
    """
    peak = max(lives.reserved, default=0)
    first: int | None = None  # of the events that gave memory back
    for at, action in enumerate(events.action):
        if action in (SEGMENT_FREE, SEGMENT_UNMAP):
            first = at if first is None else first
            continue
        if first is not None and action in (SEGMENT_ALLOC, SEGMENT_MAP, OOM):
            noted = events.stack[at - 1]
            had = lives.reserved[first - 1] if first else lives.began_reserved
            too_much = had + events.size[at] > peak
            if too_much if noted == NO_STACK else noted == events.stack[at]:
                yield first, at
        first = None
