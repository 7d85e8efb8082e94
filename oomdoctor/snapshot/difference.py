"""What is allocated at the end of one snapshot and was not at the end of an earlier one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace

from oomdoctor.records.inside.categories import CategoryBytes
from oomdoctor.records.inside.snapshot import HeldBlocks, SnapshotDifference
from oomdoctor.snapshot.composition import SHOWN_BLOCKS, composition
from oomdoctor.snapshot.history import History


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
