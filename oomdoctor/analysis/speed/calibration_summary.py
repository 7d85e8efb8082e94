"""Measured operators by kind and type, and the steps that check them, for a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from oomdoctor.analysis.speed.calibrated import calibration_of, step_s
from oomdoctor.analysis.speed.roofline import CPU
from oomdoctor.records.job.costs import OpCost, OpKind
from oomdoctor.records.job.device_times import DeviceTimes, MeasuredKernel
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.report.calibration import CheckedStep, MeasuredTerm, OperatorTerm

_TERMS: Mapping[OpKind, OperatorTerm] = {
    "matmul": "products",
    "attention": "attention",
    "conv": "convolutions",
    "elementwise": "pointwise",
    "irregular": "strided",
    "copy": "copies",
}
_COUNTED_IN_FLOPS = ("matmul", "attention", "conv")


def measured_terms(times: DeviceTimes, facts: GpuFacts | None) -> tuple[MeasuredTerm, ...]:
    """The operators by kind and type; without facts (an emulated GPU) they have no rates."""
    factors = () if facts is None else calibration_of(times, facts).kernels
    by_cost = {each.cost: each.factor for each in factors}
    groups: defaultdict[tuple[OpKind, str], list[MeasuredKernel]] = defaultdict(list)
    for kernel in times.kernels:
        groups[kernel.cost.kind, kernel.cost.dtype].append(kernel)
    return tuple(
        _term(kind, dtype, groups[kind, dtype], by_cost, is_real=facts is not None)
        for kind in _TERMS
        for dtype in sorted({other for _, other in groups})
        if (kind, dtype) in groups
    )


def _term(
    kind: OpKind,
    dtype: str,
    kernels: Sequence[MeasuredKernel],
    by_cost: Mapping[OpCost, float],
    *,
    is_real: bool,
) -> MeasuredTerm:
    timed = [kernel for kernel in kernels if kernel.seconds and is_real]
    flops = [kernel.cost.flops / kernel.seconds for kernel in timed]
    moved = [kernel.cost.bytes_moved / kernel.seconds for kernel in timed]
    in_flops = kind in _COUNTED_IN_FLOPS
    spreads = [kernel.spread for kernel in timed if kernel.spread is not None]
    factors = [by_cost[kernel.cost] for kernel in kernels if kernel.cost in by_cost]
    return MeasuredTerm(
        term=_TERMS[kind],
        dtype=dtype,
        operators=len(kernels),
        best_flops_per_s=max(flops, default=None) if in_flops else None,
        best_bytes_per_s=None if in_flops else max(moved, default=None),
        spread=median(spreads) if spreads else None,
        factor=median(factors) if factors else None,
    )


def checked_steps(times: DeviceTimes, facts: GpuFacts) -> tuple[CheckedStep, ...]:
    """The measured steps and their estimates, with and without the measured operators."""
    factors = calibration_of(times, facts)
    steps = []
    for step in times.steps:
        estimated = step_s(step, facts, factors)
        steps.append(
            CheckedStep(
                model=step.model,
                measured_s=step.seconds,
                estimated_s=estimated,
                uncalibrated_s=(None if facts.vendor == CPU else step_s(step, facts, None)),
                error=None if estimated is None else estimated / step.seconds - 1,
            )
        )
    return tuple(steps)
