"""From a snapshot to what a report says of each device.

What held the memory at one moment, by category and by the line that made it. What is allocated at
the end of one snapshot and was not at the end of an earlier one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import astuple, fields, replace
from operator import sub
from typing import NamedTuple

from oomdoctor.records.job.measurement import BlockCategory, CategoryBytes
from oomdoctor.records.report.run import Place
from oomdoctor.records.report.snapshot import (
    HeldBlocks,
    SnapshotDevice,
    SnapshotDifference,
    SnapshotFragmentation,
    SnapshotOom,
    SnapshotPeak,
    SnapshotRetries,
)
from oomdoctor.records.report.timeline import CONFIDENCES
from oomdoctor.snapshot.blocks import BEFORE, Lives
from oomdoctor.snapshot.growth import growth_of
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.reading.events import ALLOC, NO_STACK, Events
from oomdoctor.snapshot.reading.snapshot import HeldSegment
from oomdoctor.snapshot.replays import Runs, releases_of

SHOWN_BLOCKS = 50


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
    failures = events.failures()
    if not failures:
        return None
    at = failures[-1]
    meaning = meanings.of(events.stack[at])
    return SnapshotOom(
        requested_bytes=events.size[at],
        free_bytes=events.address[at],
        allocated_bytes=lives.allocated[at],
        reserved_bytes=lives.reserved[at],
        phase=meaning.phase,
        where=meaning.where or meaning.line,
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
    runs = Runs(history)
    return runs.needed(expandable=True) if runs.note is None and runs.can() else None


def retries_of(events: Events, lives: Lives) -> SnapshotRetries | None:
    """How often, what was given back, and how long that took; None if it never happened."""
    retries = [
        (release.event, release.after) for release in releases_of(events, lives) if release.is_retry
    ]
    if not retries:
        return None
    released = sum(events.size[at] for first, end in retries for at in range(first, end))
    timed = all(events.at_us[first] >= 0 for first, _ in retries)
    spent = sum(events.at_us[end] - events.at_us[first] for first, end in retries) / 1e6
    return SnapshotRetries(len(retries), released, spent if timed else None)


class _Group(NamedTuple):
    category: BlockCategory
    where: Place | None
    library_where: Place | None


def composition(history: History, event: int, shown: int | None = SHOWN_BLOCKS) -> SnapshotPeak:
    """What was allocated after an event; `BEFORE` for the time before the first one.

    `shown` limits the number of lines in `blocks`; None keeps all of them.
    """
    blocks, meanings, events = history.lives.blocks, history.meanings, history.device.events
    steps = history.steps
    totals: dict[str, int] = defaultdict(int)
    groups: dict[_Group, list[tuple[int, int]]] = defaultdict(list)
    for block in blocks.alive(event):
        category, confidence = history.categories.of(block)
        size = blocks.size[block]
        totals[f"{category}_bytes"] += size
        meaning = meanings.of(blocks.maker(block, len(events)))
        group = _Group(category, meaning.where, meaning.line)
        groups[group].append((size, CONFIDENCES.index(confidence)))
    held = [
        HeldBlocks(
            sum(size for size, _ in members),
            len(members),
            group.category,
            CONFIDENCES[max(doubt for _, doubt in members)],
            group.where,
            group.library_where,
        )
        for group, members in groups.items()
    ]
    held.sort(key=lambda line: -line.bytes)
    stack = events.stack[event] if event != BEFORE else NO_STACK
    at_us = events.at_us[event] if event != BEFORE else -1
    return SnapshotPeak(
        event=event,
        at_us=at_us if at_us >= 0 else None,
        step=bisect_right(steps, event, key=lambda step: step[1] - 1) + 1 if steps else None,
        phase=meanings.phase(stack) if event != BEFORE else "unknown",
        where=meanings.of(stack).where,
        categories=CategoryBytes(**{name: totals[name] for name in CategoryBytes.__slots__}),
        blocks=tuple(held[:shown]),
        other_blocks_bytes=sum(line.bytes for line in held[len(held[:shown]) :]),
    )


def difference_of(before: History | None, after: History) -> SnapshotDifference:
    """What a device holds more at the end of `after` than at that of `before` (None: nothing).

    Blocks are compared by the line that made them, because a history that began later may know
    less about what they are for.
    """
    earlier = None if before is None else composition(before, before.last_event, shown=None)
    later = composition(after, after.last_event, shown=None)
    names = {_line(held): held for held in reversed(later.blocks)}  # the largest of each line
    lines: dict[object, list[int]] = defaultdict(lambda: [0, 0])
    for sign, blocks in ((1, later.blocks), (-1, () if earlier is None else earlier.blocks)):
        for held in blocks:
            names.setdefault(_line(held), held)
            lines[_line(held)][0] += sign * held.bytes
            lines[_line(held)][1] += sign * held.count
    changed = [
        replace(names[line], bytes=size, count=count)
        for line, (size, count) in lines.items()
        if size
    ]
    changed.sort(key=lambda held: -abs(held.bytes))
    had = (0,) * len(fields(CategoryBytes)) if earlier is None else astuple(earlier.categories)
    grown = tuple(map(sub, astuple(later.categories), had))
    return SnapshotDifference(
        index=after.device.index,
        allocated_bytes=sum(grown),
        reserved_bytes=_reserved(after) - (0 if before is None else _reserved(before)),
        categories=CategoryBytes(*grown),
        blocks=tuple(changed[:SHOWN_BLOCKS]),
        other_blocks_bytes=sum(held.bytes for held in changed[SHOWN_BLOCKS:]),
    )


def _line(held: HeldBlocks) -> object:
    """What makes blocks comparable: their lines; without any, what they are for."""
    if held.where is None and held.library_where is None:
        return held.category
    return held.where, held.library_where


def _reserved(history: History) -> int:
    return sum(segment.size for segment in history.device.segments)
