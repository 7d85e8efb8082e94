"""Times of a device that are what is estimated, or some factor of it."""

from __future__ import annotations

from collections.abc import Mapping

from oomdoctor.analysis.speed.hosts import eager_s
from oomdoctor.analysis.speed.roofline import estimate
from oomdoctor.records.job.costs import OpCost, OpKind
from oomdoctor.records.job.device_times import (
    Clock,
    CountedOperator,
    DeviceTimes,
    MeasuredKernel,
    MeasuredStep,
)
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.measurement import Load

LAUNCH_S = 2e-6
PRODUCT = OpCost("mm", "matmul", "bfloat16", 2 * 4096.0**3, 6 * 4096.0**2, 0.0, (1, *[4096] * 3))
SHAPE = (32, 2048, 2048, 128, 1)
ATTENTION = OpCost(
    "_scaled_dot_product_flash_attention", "attention", "bfloat16", 3.4e10, 6.7e7, 0.0, SHAPE
)
ADD = OpCost("add", "elementwise", "bfloat16", 0.0, 2e8)
COSTS = (PRODUCT, ATTENTION, ADD)


def times(
    gpu: GpuFacts,
    factors: Mapping[OpKind, float],
    *,
    spread: float = 0.02,
    clock: Clock = "device",
    load: Load | None = None,
    off: float = 1.0,
) -> DeviceTimes:
    """Operators that take `factors` times as long as estimated, and a step of them.

    The step is `off` times as long as its operators.
    """
    work = {cost: factors.get(cost.kind, 1.0) * work_s(cost, gpu) for cost in COSTS}
    counted = tuple(CountedOperator(cost, 20) for cost in COSTS)
    step_s = sum(20 * (seconds + LAUNCH_S) for seconds in work.values())
    return DeviceTimes(
        kernels=tuple(MeasuredKernel(c, work[c] + LAUNCH_S, spread) for c in COSTS),
        launch_s=LAUNCH_S,
        host_step=MeasuredStep("host", (CountedOperator(ADD, 100),), 100 * eager_s(gpu) / 2, 0.01),
        steps=(MeasuredStep("llama", counted, step_s * off, 0.01),),
        clock=clock,
        rounds=5,
        elapsed_s=20.0,
        load=load,
    )


def work_s(cost: OpCost, gpu: GpuFacts) -> float:
    """The estimated seconds of an operator without its launch."""
    twice = estimate([(cost, 2)], gpu)
    alone = estimate([(cost, 1)], gpu)
    empty = estimate([(OpCost("add", "elementwise", cost.dtype, 0.0, 0.0), 1)], gpu)
    assert twice is not None and alone is not None and empty is not None
    return alone.device_s - empty.device_s
