"""An order of events with each repetition once: enough to find the highest sums of living blocks.

In a stretch that repeats, the sum changes by the same each time. So it is highest in the last
repetition if it grows, otherwise in the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from oomdoctor.analysis.memory.curve import spans
from oomdoctor.analysis.memory.phases import Window
from oomdoctor.analysis.simulator.tape import Order


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive events of one window that happen `times` in a row, the first time at `start`.

    `changes` has the block of the tape that each event is about: `source` for a birth, `~source`
    for a death.
    """

    window: int
    start: int
    changes: list[int]
    times: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest sum of a window, after an event of repetition `turn` of a stretch."""

    size: int
    stretch: int
    turn: int
    event: int


@dataclass(frozen=True, slots=True)
class Outline:
    """The stretches of an order, and its windows."""

    windows: list[Window]
    stretches: list[Stretch]
    _alive: dict[tuple[int, int, int], Mapping[int, int]] = field(default_factory=dict)

    def peaks(self, sizes: Sequence[int]) -> dict[Window, Peak]:
        """The highest sum of living blocks in each (step, phase), the first of equals.

        `sizes` has the bytes of each block of the tape.
        """
        signed = [*sizes, *(-size for size in reversed(sizes))]  # by `source` and by `~source`
        highest: dict[Window, Peak] = {}
        live = 0
        for number, stretch in enumerate(self.stretches):
            sums = list(accumulate(map(signed.__getitem__, stretch.changes)))
            growth, top = sums[-1], max(sums)
            turn = stretch.times - 1 if growth > 0 else 0
            window = self.windows[stretch.window]
            size = live + growth * turn + top
            if window not in highest or size > highest[window].size:
                highest[window] = Peak(size, number, turn, sums.index(top))
            live += growth * stretch.times
        return highest

    def alive(self, peak: Peak) -> Mapping[int, int]:
        """How many copies of each block of the tape are alive at a peak."""
        place = (peak.stretch, peak.turn, peak.event)
        if place not in self._alive:
            last = self.stretches[peak.stretch].changes
            parts = [(before.changes, before.times) for before in self.stretches[: peak.stretch]]
            counted: Counter[int] = Counter()
            for changes, times in (*parts, (last, peak.turn), (last[: peak.event + 1], 1)):
                for change, count in Counter(changes).items():
                    source, sign = (change, times) if change >= 0 else (~change, -times)
                    counted[source] += count * sign
            self._alive[place] = {source: count for source, count in counted.items() if count}
        return self._alive[place]


def outline_of(order: Order) -> Outline:
    """The outline of an order, whose windows begin at its start."""
    events, origin = order.events, order.origin
    stretches: list[Stretch] = []

    def add(window: int, start: int, end: int, times: int = 1) -> None:
        changes = [origin[e - 1] if e > 0 else ~origin[-e - 1] for e in events[start:end]]
        if changes:
            stretches.append(Stretch(window, start, changes, times))

    repeats = sorted(order.repeats)
    for window, (at, end, _, _) in enumerate(spans(order.windows, len(events))):
        while repeats and repeats[0][0] < end:
            first, length, times = repeats.pop(0)
            add(window, at, first)
            add(window, first, first + length, times)
            at = first + length * times
        add(window, at, end)
    return Outline([(step, phase) for _, step, phase in order.windows], stretches)
