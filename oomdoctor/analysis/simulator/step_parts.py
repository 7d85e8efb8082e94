"""Take the estimated time of an optimizer step apart, by kind of kernel and by phase.

The times are those of `speed.roofline`: kernels of one stream add up, so the kernels of one kind
take what they would take alone. What is left of a step is waiting: for the host, if it launches
kernels more slowly than the card runs them, and for links. The host's wait is divided among phases
by their launches, because it launches at an even rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from oomdoctor.analysis.simulator.timing import Counted, Work
from oomdoctor.analysis.speed.hosts import EAGER, Host
from oomdoctor.analysis.speed.roofline import estimate
from oomdoctor.records.job.costs import Calibration, OpCost
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.measurement import Timing
from oomdoctor.records.job.step_time import PartTime, StepBound, StepPart, StepTime


@dataclass(frozen=True, slots=True)
class Engine:
    """How the engine of a training changes the update: its share that the card does itself.

    `host_s` are the seconds in which the host updates weights instead.
    """

    update_share: float = 1.0
    host_s: float = 0.0


def part_of(cost: OpCost) -> StepPart:
    """The part of a step that a kernel belongs to."""
    if cost.kind in ("attention", "copy"):
        return "attention" if cost.kind == "attention" else "copies"
    return "products" if cost.flops else "memory"


def step_time(
    work: Work,
    timing: Timing,
    micro_steps: int,
    gpu: GpuFacts,
    calibration: Calibration | None,
    engine: Engine,
) -> StepTime:
    """The parts of the step of `timing`, which was estimated from `work` on this card.

    What `timing` has beyond the card and its host is communication.
    """
    seconds: defaultdict[tuple[StepPart, str], float] = defaultdict(float)
    bounds: defaultdict[StepBound, float] = defaultdict(float)
    launches = 0

    def add(phases: Mapping[str, Counted], share: float, host: Host = EAGER) -> float:
        nonlocal launches
        kernels = [each for costs in phases.values() for each in costs]
        whole = estimate(kernels, gpu, calibration, host)
        assert whole is not None  # the timing was estimated
        operators = {phase: sum(count for _, count in of) for phase, of in phases.items()}
        launches += round(share * sum(operators.values()))
        waits = whole.seconds - whole.device_s
        for phase, costs in phases.items():
            for part, of_part in _by_part(costs).items():
                alone = estimate(of_part, gpu, calibration)
                assert alone is not None
                seconds[part, phase] += share * alone.device_s
            if waits:
                seconds["host", phase] += share * waits * operators[phase] / sum(operators.values())
        for bound, part_share in whole.kernels_bound_by.items():
            bounds[bound] += share * whole.seconds * part_share
        return whole.seconds

    passes = {"forward": work.forward, "backward": work.backward}
    micro_s = add(passes, micro_steps, work.host)
    update_s = add({"optimizer": work.optimizer_step}, engine.update_share)
    late = timing.optimizer_step_s - engine.update_share * update_s - engine.host_s
    seconds["host", "optimizer"] += engine.host_s
    seconds["communication", "micro_step"] = micro_steps * (timing.micro_step_s - micro_s)
    seconds["communication", "optimizer"] = late
    bounds["launch"] += engine.host_s
    bounds["communication"] = late + seconds["communication", "micro_step"]
    parts = []
    for part in get_args(StepPart):
        by_phase = {phase: s for (other, phase), s in seconds.items() if other == part and s > 0}
        if by_phase:
            parts.append(PartTime(part, sum(by_phase.values()), by_phase))
    return StepTime(
        seconds=micro_steps * timing.micro_step_s + timing.optimizer_step_s,
        micro_steps=micro_steps,
        parts=tuple(parts),
        bound=max(bounds, key=bounds.__getitem__),
        launches=launches,
    )


def joined(steps: Sequence[StepTime], micro_steps: int) -> StepTime:
    """The parts of a step whose micro-steps and update were taken apart one by one."""
    seconds: defaultdict[StepPart, defaultdict[str, float]]
    seconds = defaultdict(lambda: defaultdict(float))
    bounds: defaultdict[StepBound, float] = defaultdict(float)
    for step in steps:
        bounds[step.bound] += step.seconds
        for of in step.parts:
            for phase, spent in of.by_phase.items():
                seconds[of.part][phase] += spent
    return StepTime(
        seconds=sum(step.seconds for step in steps),
        micro_steps=micro_steps,
        parts=tuple(
            PartTime(part, sum(seconds[part].values()), dict(seconds[part]))
            for part in get_args(StepPart)
            if part in seconds
        ),
        bound=max(bounds, key=bounds.__getitem__),
        launches=sum(step.launches for step in steps),
    )


def _by_part(costs: Counted) -> dict[StepPart, list[tuple[OpCost, int]]]:
    parts: defaultdict[StepPart, list[tuple[OpCost, int]]] = defaultdict(list)
    for cost, count in costs:
        parts[part_of(cost)].append((cost, count))
    return parts
