"""The predicted step on a time line: a slice for each kernel, one after the other.

The first micro-step has a slice for each kernel at full depth; the others are like it and have one
slice each. If there are too many kernels, those of the layers that repeat are one slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from oomdoctor.analysis.simulator.step_parts import Engine, part_of
from oomdoctor.analysis.simulator.timing import Counted, Work
from oomdoctor.analysis.speed.roofline import estimate
from oomdoctor.records.facts.step_parts import STEP_PARTS
from oomdoctor.records.job.costs import Calibration, OpCost
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.step_time import StepPart, StepTime

MOST_SLICES = 100_000  # about 20 MB of JSON


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that takes `seconds` in a phase; `flops` and `bytes_moved` are its own.

    `layer` is (number, of how many) in a run of layers that repeat, None outside of them. `phase`
    is "micro_step" for a whole one. `shape` is that of an `OpCost`.
    """

    name: str
    part: StepPart | None
    phase: str
    seconds: float
    flops: float = 0.0
    bytes_moved: float = 0.0
    dtype: str = ""
    layer: tuple[int, int] | None = None
    shape: tuple[int, ...] = ()


def step_slices(
    work: Work,
    step: StepTime,
    gpu: GpuFacts,
    calibration: Calibration | None,
    engine: Engine,
    most: int = MOST_SLICES,
) -> list[Slice]:
    """The slices of a step in the order of time; their seconds add up to those of `step`.

    `step` was taken apart from the same `work`. At most about `most` slices are made.
    """
    phases = {"forward": work.forward, "backward": work.backward}
    kernels = sum(count for costs in (*phases.values(), work.optimizer_step) for _, count in costs)
    times = _Times(gpu, calibration)
    waits = {
        (of.part, phase): seconds
        for of in step.parts
        if of.part in ("host", "communication")
        for phase, seconds in of.by_phase.items()
    }

    def of_phase(phase: str, costs: Counted, share: float, steps: int) -> Iterator[Slice]:
        yield from _kernels(costs, phase, share, times, each=kernels <= most)
        for part in ("host", "communication"):
            if waited := waits.get((part, phase)):
                name = "waits for the host" if part == "host" else "waits for links"
                yield Slice(name, part, phase, waited / steps)

    steps = step.micro_steps
    first = [each for phase, of in phases.items() for each in of_phase(phase, of, 1.0, steps)]
    first += of_phase("micro_step", (), 1.0, steps)
    whole = sum(each.seconds for each in first)
    others = [
        Slice(f"micro-step {number} of {steps}, like the first", None, "micro_step", whole)
        for number in range(2, steps + 1)
    ]
    share = engine.update_share
    update = list(of_phase("optimizer", work.optimizer_step if share else (), share, 1))
    return [*first, *others, *update]


class _Times:
    """The seconds of kernels on one card; many kernels of a model are the same objects."""

    def __init__(self, gpu: GpuFacts, calibration: Calibration | None) -> None:
        self._gpu, self._calibration = gpu, calibration
        self._seconds: dict[int, tuple[OpCost, float]] = {}

    def of(self, cost: OpCost) -> float:
        if id(cost) not in self._seconds:
            alone = estimate([(cost, 1)], self._gpu, self._calibration)
            assert alone is not None  # the step was estimated
            self._seconds[id(cost)] = (cost, alone.device_s)
        return self._seconds[id(cost)][1]


def _kernels(
    costs: Counted, phase: str, share: float, times: _Times, *, each: bool
) -> Iterator[Slice]:
    """The kernels of a phase; a run of them that repeats is a layer, or the part of one."""
    for count, group in groupby(costs, key=lambda counted: counted[1]):
        run = [cost for cost, _ in group]
        if count > 1 and not each:
            for part in STEP_PARTS:
                alike = [cost for cost in run if part_of(cost) == part]
                if alike:
                    yield Slice(
                        f"{count} layers: {STEP_PARTS[part].words}", part_of(alike[0]), phase,
                        share * count * sum(map(times.of, alike)),
                        count * sum(cost.flops for cost in alike),
                        count * sum(cost.bytes_moved for cost in alike),
                    )  # fmt: skip
            continue
        for layer in range(1, count + 1):
            for cost in run:
                yield Slice(
                    cost.name, part_of(cost), phase, share * times.of(cost), cost.flops,
                    cost.bytes_moved, cost.dtype, (layer, count) if count > 1 else None,
                    cost.shape,
                )  # fmt: skip
