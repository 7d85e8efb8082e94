"""When torch gave cached memory back to the driver, and whether a request made it do so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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


class Release(NamedTuple):
    """A run of events that gave memory back: its first, and the first event after it.

    `is_retry` says that a request made it, which had failed.
    """

    event: int
    after: int
    is_retry: bool


def releases_of(events: Events, lives: Lives) -> Iterator[Release]:
    """The releases of a trace; one that is no retry is `empty_cache`.

    With what it gives back for a request, torch notes the stack of the request. Before torch 2.2
    it notes none; then the request would have led to more than was ever reached.
    """
    peak = max(lives.reserved, default=0)
    first: int | None = None  # of the events that gave memory back
    for at, action in enumerate(events.action):
        if action in (SEGMENT_FREE, SEGMENT_UNMAP):
            first = at if first is None else first
            continue
        if first is not None:
            yield Release(first, at, _is_retry(events, lives, first, at, peak))
        first = None
    if first is not None:
        yield Release(first, len(events), False)


def _is_retry(events: Events, lives: Lives, first: int, after: int, peak: int) -> bool:
    if events.action[after] not in (SEGMENT_ALLOC, SEGMENT_MAP, OOM):
        return False
    noted = events.stack[after - 1]
    if noted != NO_STACK:
        return noted == events.stack[after]
    had = lives.reserved[first - 1] if first else lives.began_reserved
    return had + events.size[after] > peak
