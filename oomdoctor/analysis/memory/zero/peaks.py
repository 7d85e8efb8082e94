"""What a GPU holds under ZeRO, by category: moment by moment, and at the peak of each phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oomdoctor.analysis.memory.curve import phases_of, thinned
from oomdoctor.analysis.memory.phases import Course, Parts, size_of
from oomdoctor.analysis.memory.zero.setting import Beside, Parameter, Setting, deciding_ranks
from oomdoctor.analysis.memory.zero.stage_three import course_of_stage_three
from oomdoctor.analysis.memory.zero.stages_one_two import course_of_stages_one_two
from oomdoctor.records.facts.categories import CATEGORIES
from oomdoctor.records.job.measurement import MemoryCurve


@dataclass(frozen=True, slots=True)
class ZeroPeaks:
    """The peaks of the rank that needs the most: what it holds then, by phase.

    Phases: load, forward, backward, optimizer.
    """

    rank: int
    phases: Mapping[str, Parts]

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=lambda phase: size_of(self.phases[phase]))

    @property
    def peak_bytes(self) -> int:
        return size_of(self.phases[self.peak_phase])


def peaks_of(setting: Setting, parameters: Sequence[Parameter], beside: Beside) -> ZeroPeaks:
    """The peaks of a training with ZeRO, on the rank that needs the most.

    `beside` is what the step holds besides weights, gradients and states on one GPU.
    """
    # In stage 3 all ranks are alike, except for padding.
    ranks = (0,) if setting.stage == 3 else deciding_ranks(setting.ranks)
    of_ranks = [peaks_on(rank, setting, parameters, beside) for rank in ranks]
    return max(of_ranks, key=lambda peaks: peaks.peak_bytes)


def peaks_on(
    rank: int, setting: Setting, parameters: Sequence[Parameter], beside: Beside
) -> ZeroPeaks:
    """The peaks on one rank."""
    phases: dict[str, Parts] = {}
    for phase, parts in course_of(setting, parameters, beside, rank):
        if phase not in phases or size_of(parts) > size_of(phases[phase]):
            phases[phase] = parts
    return ZeroPeaks(rank, phases)


def course_of(
    setting: Setting, parameters: Sequence[Parameter], beside: Beside, rank: int
) -> Course:
    """What a rank holds, moment by moment; the highest of a phase is its peak."""
    if setting.stage == 3:
        return course_of_stage_three(setting, parameters, beside)
    return course_of_stages_one_two(setting, parameters, beside, rank)


def curve_of(course: Course) -> MemoryCurve:
    """The curve over the load and a step; each moment of the course counts as one event."""
    totals = tuple(size_of(parts) for _, parts in course)
    sizes = {name: tuple(parts.get(name, 0) for _, parts in course) for name in CATEGORIES}
    phases = phases_of(("load" if name == "load" else "steady", name) for name, _ in course)
    return thinned(
        MemoryCurve(
            events=len(course),
            event=tuple(range(len(course))),
            allocated_bytes=totals,
            by_category={name: own for name, own in sizes.items() if any(own)},
            phases=phases,
            peak=totals.index(max(totals)),
        )
    )
