"""What held the memory at one moment, by category and by the line that made it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from oomdoctor.records.diagnosis import Confidence
from oomdoctor.records.inside.categories import BlockCategory, CategoryBytes
from oomdoctor.records.inside.run import Place
from oomdoctor.records.inside.snapshot import HeldBlocks, SnapshotPeak
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
