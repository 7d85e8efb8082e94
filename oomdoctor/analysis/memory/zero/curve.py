"""The curve of a training with ZeRO: the moments of the model of its buffers."""

from __future__ import annotations

from oomdoctor.analysis.memory.thinning import thinned
from oomdoctor.analysis.memory.zero.parts import Course, size_of
from oomdoctor.records.curve import CurvePhase, MemoryCurve
from oomdoctor.records.facts.categories import CATEGORIES


def curve_of(course: Course) -> MemoryCurve:
    """The curve over the load and a step; each moment of the course counts as one event."""
    totals = tuple(size_of(parts) for _, parts in course)
    sizes = {name: tuple(parts.get(name, 0) for _, parts in course) for name in CATEGORIES}
    phases: list[CurvePhase] = []
    for moment, (phase, _) in enumerate(course):
        if not phases or phases[-1].phase != phase:
            phases.append(CurvePhase("load" if phase == "load" else "steady", phase, moment))
    return thinned(
        MemoryCurve(
            events=len(course),
            event=tuple(range(len(course))),
            allocated_bytes=totals,
            by_category={name: own for name, own in sizes.items() if any(own)},
            phases=tuple(phases),
            peak=totals.index(max(totals)),
        )
    )
