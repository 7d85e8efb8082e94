"""When levels are compared: at the same point of each step, or of each pass without steps.

An optimizer step is one moment, at its end. In a long part without steps, such as an evaluation,
the moments are the allocations of a line that comes back at regular distances. Only lines outside
the model count, because its layers come back in each pass as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pstdev

from oomdoctor.records.inside.snapshot import GrowthUnit
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.phases import Meaning
from oomdoctor.snapshot.reading.events import ALLOC, OOM

_LEAST = 8  # passes
_MOST = 2_000  # moments; more are thinned
_LONG = 3  # times the usual distance of two steps
_NO_LOOP = frozenset(("init", "load", "save", "backward", "optimizer"))
_COVERED = 0.5  # of a part without steps that its moments have to span


@dataclass(frozen=True, slots=True)
class Moments:
    """Events in order; levels are compared before each. `every` units lie between two."""

    events: tuple[int, ...]
    unit: GrowthUnit
    every: int = 1

    @property
    def end(self) -> int:
        """The last event that is compared."""
        return self.events[-1]


def moments_of(history: History) -> Iterator[Moments]:
    """The steps, then each long part without any."""
    events = history.device.events
    ends = [after for _, after in history.steps]
    if ends:
        yield _thinned(ends, "step")
    borders = [0, *ends, len(events)]
    gaps = [after - before for before, after in pairwise(ends)]
    usual = median(gaps) if gaps else 0
    for first, after in pairwise(borders):
        if after - first > _LONG * usual:
            passes = _passes(history, first, after)
            if len(passes) >= _LEAST:
                yield _thinned(passes, "pass")


def _thinned(events: list[int], unit: GrowthUnit) -> Moments:
    every = -(-len(events) // _MOST)
    return Moments(tuple(events[::-1][::every][::-1]), unit, every)


def _passes(history: History, first: int, after: int) -> list[int]:
    """The allocations of the line outside the model that comes back most regularly in a part."""
    events, meanings = history.device.events, history.meanings
    at: dict[int, list[int]] = defaultdict(list)
    for event in range(first, after):
        if events.action[event] == OOM:
            break
        if events.action[event] == ALLOC:
            at[events.stack[event]].append(event)
    regular = [
        (_irregularity(found), found[0], found)
        for stack, found in at.items()
        if len(found) >= _LEAST
        and found[-1] - found[0] >= _COVERED * (after - first)
        and _is_of_a_loop(meanings.of(stack))
    ]
    return min(regular)[2] if regular else []


def _is_of_a_loop(meaning: Meaning) -> bool:
    return meaning.where is not None and not meaning.depth and meaning.phase not in _NO_LOOP


def _irregularity(found: list[int]) -> float:
    gaps = [after - before for before, after in pairwise(found)]
    return round(pstdev(gaps) / fmean(gaps), 2)
