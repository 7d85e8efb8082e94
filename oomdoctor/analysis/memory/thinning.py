"""Leave out the moments of a curve that a straight line through its neighbors shows as well."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from oomdoctor.records.curve import CurvePhase, MemoryCurve

TOLERANCE = 0.005
"""Of the peak: what a line may be off, which is less than a pixel of a chart."""


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
    return MemoryCurve(
        events=curve.events,
        event=tuple(curve.event[place] for place in places),
        allocated_bytes=tuple(curve.allocated_bytes[place] for place in places),
        by_category={
            name: tuple(sizes[place] for place in places)
            for name, sizes in curve.by_category.items()
        },
        phases=tuple(
            CurvePhase(phase.step, phase.phase, places.index(phase.moment))
            for phase in curve.phases
        ),
        peak=places.index(curve.peak),
    )


def _between(
    low: int, high: int, at: Sequence[int], series: Sequence[Sequence[int]], most: float
) -> set[int]:
    """The moments between two that a line from one to the other misses by more than `most`."""
    found: set[int] = set()
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
            found.add(place)
            open_ += [(first, place), (place, last)]
    return found
