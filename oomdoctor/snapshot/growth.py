"""Memory that each optimizer step leaves behind: which stack makes it, and how much."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from oomdoctor.records.snapshot import SnapshotGrowth
from oomdoctor.snapshot.blocks import BEFORE, Lives
from oomdoctor.snapshot.composition import place
from oomdoctor.snapshot.phases import Meanings

_LEAST_STEPS = 4  # whole ones, without the first, which makes the optimizer's states
_SHARE = 0.8  # of these steps that have to leave something


def growth_of(
    lives: Lives, meanings: Meanings, steps: list[tuple[int, int]]
) -> SnapshotGrowth | None:
    """The growth of a trace; None if its steps leave nothing, or are too few to tell.

    What counts is a stack whose blocks are born in nearly every step and never freed. The first
    step is left out, and the last two: what they hold may be freed in the next.
    """
    first, last = 1, len(steps) - 2
    if last - first < _LEAST_STEPS:
        return None
    starts = [start for start, _ in steps]
    end, blocks = len(lives.allocated), lives.blocks
    left: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    columns = zip(blocks.born, blocks.died, blocks.size, blocks.stack, strict=True)
    for born, died, size, stack in columns:
        if born == BEFORE or died < end:
            continue
        step = bisect_right(starts, born)
        if first <= step < last:
            left[stack][step] += size
    whole = last - first
    growing = {s: sum(by.values()) for s, by in left.items() if len(by) >= _SHARE * whole}
    if not growing:
        return None
    worst = max(growing, key=growing.__getitem__)
    meaning = meanings.of(worst)
    return SnapshotGrowth(
        bytes_per_step=sum(growing.values()) // whole,
        steps=whole,
        where=place(meaning.where or meaning.line),
    )
