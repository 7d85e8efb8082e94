"""What held the memory at one moment, by category and by the line that made it.

What is allocated at the end of one snapshot and was not at the end of an earlier one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from oomdoctor.records.diagnosis import Confidence
from oomdoctor.records.inside.run import Place
from oomdoctor.records.inside.snapshot import HeldBlocks, SnapshotDifference, SnapshotPeak
from oomdoctor.records.measurement import BlockCategory, CategoryBytes
from oomdoctor.snapshot.blocks import BEFORE
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.reading.events import NO_STACK, Frame

SHOWN_BLOCKS = 50
_CONFIDENCES: tuple[Confidence, ...] = ("low", "medium", "high")


class _Group(NamedTuple):
    category: BlockCategory
    where: Place | None
    library_where: Place | None


@dataclass(slots=True)
class _Sum:
    bytes: int = 0
    count: int = 0
    confidence: int = len(_CONFIDENCES) - 1


def composition(history: History, event: int, shown: int | None = SHOWN_BLOCKS) -> SnapshotPeak:
    """What was allocated after an event; `BEFORE` for the time before the first one.

    `shown` limits the number of lines in `blocks`; None keeps all of them.
    """
    blocks, meanings, events = history.lives.blocks, history.meanings, history.device.events
    steps = history.steps
    totals: dict[str, int] = defaultdict(int)
    groups: dict[_Group, _Sum] = defaultdict(_Sum)
    for block in blocks.alive(event):
        category, confidence = history.categories.of(block)
        size = blocks.size[block]
        totals[f"{category}_bytes"] += size
        meaning = meanings.of(blocks.stack[block])
        held = groups[_Group(category, place(meaning.where), place(meaning.line))]
        held.bytes += size
        held.count += 1
        held.confidence = min(held.confidence, _CONFIDENCES.index(confidence))
    ordered = sorted(groups.items(), key=lambda item: -item[1].bytes)
    stack = events.stack[event] if event != BEFORE else NO_STACK
    at_us = events.at_us[event] if event != BEFORE else -1
    return SnapshotPeak(
        event=event,
        at_us=at_us if at_us >= 0 else None,
        step=bisect_right(steps, event, key=lambda step: step[1] - 1) + 1 if steps else None,
        phase=meanings.phase(stack) if event != BEFORE else "unknown",
        where=place(meanings.of(stack).where),
        categories=CategoryBytes(**{name: totals[name] for name in CategoryBytes.__slots__}),
        blocks=tuple(
            HeldBlocks(
                held.bytes,
                held.count,
                group.category,
                _CONFIDENCES[held.confidence],
                group.where,
                group.library_where,
            )
            for group, held in ordered[:shown]
        ),
        other_blocks_bytes=sum(held.bytes for _, held in ordered[len(ordered[:shown]) :]),
    )


def place(frame: Frame | None) -> Place | None:
    """A frame as a report shows it."""
    return None if frame is None else Place(frame.file, frame.line, frame.function)


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
    first = CategoryBytes(*(0,) * len(fields(CategoryBytes)))
    had = first if earlier is None else earlier.categories
    return SnapshotDifference(
        index=after.device.index,
        allocated_bytes=_sum(later.categories) - _sum(had),
        reserved_bytes=_reserved(after) - (0 if before is None else _reserved(before)),
        categories=CategoryBytes(
            *(getattr(later.categories, f.name) - getattr(had, f.name) for f in fields(had))
        ),
        blocks=tuple(changed[:SHOWN_BLOCKS]),
        other_blocks_bytes=sum(held.bytes for held in changed[SHOWN_BLOCKS:]),
    )


def _line(held: HeldBlocks) -> object:
    """What makes blocks comparable: their lines; without any, what they are for."""
    if held.where is None and held.library_where is None:
        return held.category
    return held.where, held.library_where


def _sum(held: CategoryBytes) -> int:
    return sum(getattr(held, field.name) for field in fields(held))


def _reserved(history: History) -> int:
    return sum(segment.size for segment in history.device.segments)
