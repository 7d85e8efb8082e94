"""A curve of memory over a step, from births and deaths of blocks: a few moments of many events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

from oomdoctor.records.job.measurement import CurvePhase, MemoryCurve

MOMENTS = 120
"""At most about so many moments are kept; reports hold many curves."""
_LEAST = 2  # moments of a phase, so that none is only a line

Window = tuple[int, str, str]  # first event, step, phase


TOLERANCE = 0.005
"""Of the peak: what a line may be off, which is less than a pixel of a chart."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events `first` to `end` (without it) of a window."""

    first: int
    end: int
    step: str
    phase: str


def spans(windows: Sequence[Window], events: int) -> list[tuple[int, int, str, str]]:
    """(first event, end, step, phase) of each window, which begins where the one before ends."""
    ends = [*(first for first, _, _ in windows[1:]), events]
    begun = zip(windows, ends, strict=True)
    return [(first, end, step, phase) for (first, step, phase), end in begun]


def stretches(windows: Sequence[Window], events: int, moments: int = MOMENTS) -> list[Stretch]:
    """The events in about so many parts, each in one window; windows without any are left out."""
    parts: list[Stretch] = []
    for first, end, step, phase in spans(windows, events):
        length = end - first
        count = min(length, max(_LEAST, round(moments * length / max(1, events))))
        edges = [first + length * place // count for place in range(count + 1)] if count else []
        parts += [Stretch(begins, stops, step, phase) for begins, stops in pairwise(edges)]
    return parts


def memory_curve(
    changes: Sequence[int],
    categories: Sequence[str],
    parts: Sequence[Stretch],
    peaks: Sequence[int] | None = None,
) -> MemoryCurve:
    """The highest moment of each part, without those that lie on a line between others.

    `changes` has what each event adds to the allocated bytes, and `categories` what it is about.
    `peaks` are the peaks of the parts where the allocator knows more than the blocks say.
    """
    totals = list(accumulate(changes))
    live = dict.fromkeys(categories, 0)
    by_category: dict[str, list[int]] = {name: [] for name in live}
    tops: list[int] = []
    at = 0
    for part in parts:
        stretch = totals[part.first : part.end]
        top = part.first + stretch.index(max(stretch))
        for event in range(at, top + 1):
            live[categories[event]] += changes[event]
        at = top + 1
        tops.append(top)
        for name, size in live.items():
            by_category[name].append(size)
    allocated = tuple(totals[top] for top in tops) if peaks is None else tuple(peaks)
    before = parts[0].first  # events that only say what was there
    whole = MemoryCurve(
        events=len(changes) - before,
        event=tuple(top - before for top in tops),
        allocated_bytes=allocated,
        by_category={name: tuple(sizes) for name, sizes in by_category.items() if any(sizes)},
        phases=phases_of((part.step, part.phase) for part in parts),
        peak=allocated.index(max(allocated)),
    )
    return thinned(whole)


def phases_of(moments: Iterable[tuple[str, str]]) -> tuple[CurvePhase, ...]:
    """Where each phase begins, of moments by step and phase; micro-steps follow each other."""
    whole = (next(group) for _, group in groupby(enumerate(moments), key=lambda moment: moment[1]))
    return tuple(CurvePhase(*phase, moment) for moment, phase in whole)


def thinned(curve: MemoryCurve, tolerance: float = TOLERANCE) -> MemoryCurve:
    """The curve without moments that lie on a line, within `tolerance` of the peak, in all sizes.

    The peak, the highest moment of each phase, its first and its last always stay, so no maximum
    changes (Ramer, 1972; Douglas and Peucker, 1973).
    """
    series = [curve.allocated_bytes, *curve.by_category.values()]
    most = curve.allocated_bytes[curve.peak] * tolerance
    starts = [phase.moment for phase in curve.phases]
    kept = {curve.peak}
    for first, end in zip(starts, [*starts[1:], len(curve.event)], strict=True):
        top = max(range(first, end), key=curve.allocated_bytes.__getitem__)
        corners = sorted({first, top, end - 1} | ({curve.peak} & set(range(first, end))))
        kept.update(corners)
        for low, high in pairwise(corners):
            kept.update(_between(low, high, curve.event, series, most))
    places = sorted(kept)

    def at_places(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(values[place] for place in places)

    phases = (replace(phase, moment=places.index(phase.moment)) for phase in curve.phases)
    return MemoryCurve(
        events=curve.events,
        event=at_places(curve.event),
        allocated_bytes=at_places(curve.allocated_bytes),
        by_category={name: at_places(sizes) for name, sizes in curve.by_category.items()},
        phases=tuple(phases),
        peak=places.index(curve.peak),
    )


def _between(
    low: int, high: int, at: Sequence[int], series: Sequence[Sequence[int]], most: float
) -> set[int]:
    """The moments between two that a line from one to the other misses by more than `most`."""
    places: set[int] = set()
    open_ = [(low, high)]
    while open_:
        first, last = open_.pop()
        worst, place = most, None
        for moment in range(first + 1, last):
            share = (at[moment] - at[first]) / max(1, at[last] - at[first])
            off = max(
                abs(sizes[moment] - sizes[first] - share * (sizes[last] - sizes[first]))
                for sizes in series
            )
            if off > worst:
                worst, place = off, moment
        if place is not None:
            places.add(place)
            open_ += [(first, place), (place, last)]
    return places
