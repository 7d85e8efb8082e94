"""A trace as births and deaths, as the model of the allocator takes them.

When torch gave cached memory back to the driver, and whether a request made it do so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from oomdoctor.analysis.allocator import Mark
from oomdoctor.snapshot.blocks import Lives
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.reading.events import (
    NO_STACK,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Events,
)


@dataclass(frozen=True, slots=True)
class Order:
    """Events `+(i + 1)` for the birth of block i and `-(i + 1)` for its death, and their sizes.

    Blocks are those of the history. If a request failed in the end, it is one more block, the last
    one, that dies at once; `failed` is the event in the trace, `capacity_bytes` what torch could
    reserve then. `marks` say where the cache was emptied by hand.
    """

    events: list[int]
    sizes: list[int]
    marks: tuple[Mark, ...]
    failed: int | None
    capacity_bytes: int | None


def order_of(history: History) -> Order:
    """The order of a trace, up to the last request that failed."""
    blocks, events = history.lives.blocks, history.device.events
    failures = [at for at, action in enumerate(events.action) if action == OOM]
    failed = failures[-1] if failures else None
    end = len(events) if failed is None else failed
    moments = []
    for block, (born, died) in enumerate(zip(blocks.born, blocks.died, strict=True), start=1):
        if born < end:
            moments.append((born, block))
            if died < end:
                moments.append((died, -block))
    moments.sort()
    sizes = [history.tensor_bytes(block) for block in range(len(blocks))]
    order = [block for _, block in moments]
    capacity = None
    if failed is not None:
        sizes.append(events.size[failed])
        order += [len(sizes), -len(sizes)]
        capacity = history.lives.reserved[failed] + events.address[failed]
    times = [event for event, _ in moments]
    marks = tuple(
        Mark(bisect_left(times, release.event), "emptied", empties=True)
        for release in releases_of(events, history.lives)
        if release.event < end
        # An earlier request that failed emptied the cache, and it is not in the order.
        and (not release.is_retry or release.after in failures[:-1])
    )
    return Order(order, sizes, marks, failed, capacity)


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
