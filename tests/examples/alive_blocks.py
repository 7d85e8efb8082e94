"""What is alive in an order of events, counted event by event: what outlines are compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from oomdoctor.analysis.simulator.orders.outline import Outline, Peak
from oomdoctor.analysis.simulator.tape import Order, TapeBlock


def made_of(
    order: Order, sizes: list[int], blocks: list[TapeBlock], position: int
) -> Mapping[int, int]:
    """How many copies of each block of the tape are alive after the event at `position`."""
    events = order.events[: position + 1]
    alive = {event for event in events if event > 0}.difference([-e for e in events if e < 0])
    counted = Counter(order.origin[event - 1] for event in alive)
    in_order = dict.fromkeys(order.origin[event - 1] for event in events if event > 0)
    return {source: counted[source] for source in in_order if counted[source] and sizes[source]}


def position_of(outline: Outline, peak: Peak) -> int:
    """The event of the order at which a peak is."""
    stretch = outline.stretches[peak.stretch]
    return stretch.start + peak.turn * len(stretch.changes) + peak.event
