"""Timelines made by hand."""

from __future__ import annotations

import random
from array import array
from itertools import accumulate

from oomdoctor.records.report.run import Place
from oomdoctor.records.report.timeline import (
    Timeline,
    TimelineBlocks,
    TimelineDevice,
    TimelineStack,
)


def crowded(events: int, source: str = "x") -> Timeline:
    """A device with blocks of any size, life and stack, none like another."""
    luck = random.Random(7)
    count = events // 2
    born = sorted(luck.randrange(events) for _ in range(count))
    stacks = [luck.randrange(-1, 2000) for _ in range(count)]
    blocks = TimelineBlocks(
        born=array("i", born),
        died=array("i", (min(events, at + 1 + int(luck.expovariate(0.001))) for at in born)),
        size=array("q", (512 * luck.randrange(1, 10**7) for _ in range(count))),
        stack=array("i", stacks),
        category=array("b", (luck.randrange(7) for _ in range(count))),
        confidence=array("b", (luck.randrange(3) for _ in range(count))),
        before=array("b", bytes(count)),
        maker=array("b", b"\1" * count),
    )
    device = TimelineDevice(
        index=0,
        events=events,
        event=array("q", range(events)),
        at_us=array("q", accumulate(luck.randrange(10**5) for _ in range(events))),
        allocated=array("q", (luck.randrange(2**40) for _ in range(events))),
        reserved=array("q", (2**40 + 2**21 * luck.randrange(40) for _ in range(events))),
        phase=array("b", (luck.randrange(9) for _ in range(events))),
        blocks=blocks,
        rest={"weights": array("q", (512 * luck.randrange(99) for _ in range(events)))},
        steps=((3, 5), (10, 12)),
        peak=4,
        traced=True,
        failures=(),
        limit_bytes=None,
        truncated=False,
        has_stacks=True,
        most_moments=events,
        unseen_blocks=0,
        small_blocks=0,
    )
    frames = tuple(Place(f"/a/b{n}/c.py", luck.randrange(3000), f"f{n}") for n in range(5000))
    found = tuple(
        TimelineStack(tuple(luck.randrange(5000) for _ in range(40)), luck.randrange(-1, 40))
        for _ in range(2000)
    )
    return Timeline(source, None, (device,), frames, found)
