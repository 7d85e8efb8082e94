"""Memory that is reserved but not allocated, and what expandable segments would have saved."""

from __future__ import annotations

from collections.abc import Iterator

from oomdoctor.records.inside.snapshot import SnapshotFragmentation
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.reading.snapshot import HeldSegment
from oomdoctor.snapshot.replay.order import order_of
from oomdoctor.snapshot.replay.replays import Runs


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
