"""From measured operators of a device to the factors of its estimates, and how exact those are.

    factor of an operator = (measured - launch) / estimated work
    host                  = measured seconds of an operator in a small model / assumed ones

A CPU has no published peaks: those of its `GpuFacts` are the fastest products and the fastest
stream that were measured. It launches nothing, so what the host takes for an operator is added to
its work.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from oomdoctor.analysis.speed.hosts import eager_s
from oomdoctor.analysis.speed.roofline import CPU, RAMP_S, estimate
from oomdoctor.records.job.costs import Calibration, KernelFactor, OpCost
from oomdoctor.records.job.device_times import DeviceTimes, MeasuredStep
from oomdoctor.records.job.machine import GpuFacts

_LEAST_LAUNCHES = 3  # times are no factors if most of them is the launch


@lru_cache(maxsize=8)
def calibration_of(times: DeviceTimes, gpu: GpuFacts) -> Calibration:
    """The factors for a device with these facts, with the largest error in `times.steps`.

    Operators that cannot be estimated on it, or whose time is mostly their launch, have no factor.
    """
    kernels = tuple(
        KernelFactor(kernel.cost, (kernel.seconds - times.launch_s) / estimated)
        for kernel in times.kernels
        if kernel.seconds >= _LEAST_LAUNCHES * times.launch_s
        and (estimated := _estimated_work_s(kernel.cost, gpu))
    )
    factors = Calibration(kernels=kernels, ramp=times.launch_s / RAMP_S)
    factors = _with_host(factors, times, gpu)
    errors = [
        abs(estimated / step.seconds - 1)
        for step in times.steps
        if (estimated := step_s(step, gpu, factors)) is not None
    ]
    return replace(factors, error=max(errors, default=None))


def step_s(step: MeasuredStep, gpu: GpuFacts, factors: Calibration | None) -> float | None:
    """The estimated seconds of a measured step."""
    estimated = estimate(_counted(step), gpu, factors)
    return None if estimated is None else estimated.seconds


def _counted(step: MeasuredStep) -> list[tuple[OpCost, int]]:
    return [(operator.cost, operator.count) for operator in step.operators]


def _estimated_work_s(cost: OpCost, gpu: GpuFacts) -> float | None:
    estimated = estimate([(cost, 1)], gpu)
    return None if estimated is None else estimated.device_s - RAMP_S


def _with_host(factors: Calibration, times: DeviceTimes, gpu: GpuFacts) -> Calibration:
    """The factors, with what the host takes for an operator of a small model."""
    step, each = times.host_step, host_operator_s(times)
    if gpu.vendor != CPU:
        return replace(factors, host=each / eager_s(gpu))
    working = estimate(_counted(step), gpu, replace(factors, ramp=0.0))
    assert working is not None  # a CPU has all types
    each *= max(0.0, 1 - working.device_s / step.seconds)
    return replace(factors, ramp=max(factors.ramp, each / RAMP_S), host=0.0)


def cpu_facts(name: str, times: DeviceTimes) -> GpuFacts:
    """The facts of a CPU: its fastest products and stream, in place of published peaks."""
    rates = {
        dtype: max(
            (
                kernel.cost.flops / kernel.seconds
                for kernel in times.kernels
                if kernel.cost.kind == "matmul" and kernel.cost.dtype == dtype
            ),
            default=None,
        )
        for dtype in ("float32", "bfloat16", "float16")
    }
    streams = [
        kernel.cost.bytes_moved / kernel.seconds
        for kernel in times.kernels
        if kernel.cost.kind == "elementwise"
    ]
    return GpuFacts(
        name=name,
        aliases=(),
        vendor=CPU,
        architecture=CPU,
        compute_capability=None,
        memory_bytes=0,
        total_bytes=None,
        bandwidth_bytes_per_s=max(streams, default=None),
        fp32_flops=rates["float32"],
        tf32_flops=None,
        fp16_flops=rates["float16"],
        bf16_flops=rates["bfloat16"],
        fp8_flops=None,
        notes="measured by probe --calibrate",
    )


def host_operator_s(times: DeviceTimes) -> float:
    """Seconds that an operator takes in a model so small that the host limits it."""
    step = times.host_step
    return step.seconds / max(1, sum(operator.count for operator in step.operators))
