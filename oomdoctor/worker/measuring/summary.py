"""Make the record of a measurement from the meter, the trace and the timing."""

from __future__ import annotations

import math

from oomdoctor.analysis.memory.phases import Window, breakdown, peak_phase, worst_of
from oomdoctor.records.facts.attention import attention_kernel
from oomdoctor.records.job.measurement import (
    Breakdown,
    Measurement,
    MemoryCurve,
    PhaseMemory,
    PhaseName,
    Timing,
)
from oomdoctor.worker.measuring import meters
from oomdoctor.worker.tracing.trace import AllocationTrace
from oomdoctor.worker.training import optimizers
from oomdoctor.worker.training.build import attention_implementation
from oomdoctor.worker.training.inspection import installed_versions
from oomdoctor.worker.training.setup import Setup


def summarise(
    setup: Setup,
    meter: meters.Meter,
    totals: meters.DeviceTotals,
    trace: AllocationTrace,
    curve: MemoryCurve | None,
    losses: list[float],
    timing: Timing | None,
    skipped: int,
) -> Measurement:
    """Everything that was measured on one rung; `totals` are from after the memory steps.

    `curve` is left out where its peak is not the measured one.
    """
    windows = worst_of(peak for peak in meter.peaks if peak[0][0] != "end")
    phases = worst_of((phase, memory) for (_, phase), memory in windows.items())
    highest = peak_phase(phases)
    peak_allocated = max(memory.peak_allocated_bytes for memory in phases.values())
    reserved = [m.peak_reserved_bytes for m in phases.values() if m.peak_reserved_bytes is not None]
    peak_reserved = max(reserved) if reserved else None
    peak_device = None
    if peak_reserved is not None and totals.overhead_bytes is not None:
        peak_device = peak_reserved + totals.overhead_bytes
    trainable, parameters = count_parameters(setup)
    return Measurement(
        peak_allocated_bytes=peak_allocated,
        peak_reserved_bytes=peak_reserved,
        peak_device_bytes=peak_device,
        overhead_bytes=totals.overhead_bytes,
        peak_rss_bytes=meters.peak_rss_bytes(),
        peak_phase=highest,
        phases=phases,
        first_step=_of_step(windows, "first"),
        steady=_of_step(windows, "steady"),
        breakdown=_breakdown(trace, peak_allocated, highest),
        allocation_retries=totals.allocation_retries,
        managed_bytes=optimizers.managed_bytes(setup.trainer.optimizer),
        timing=timing,
        attention_kernel=attention_kernel(
            attention_implementation(setup), trace.attention_ops, compiled=setup.config.compile
        ),
        trainable_parameters=trainable,
        parameters=parameters,
        # On an emulated GPU a loss may be a quotient of zeros.
        losses=tuple(filter(math.isfinite, losses)),
        skipped_optimizer_steps=skipped,
        notes=tuple(setup.notes),
        versions=installed_versions(),
        memory_stats=totals.memory_stats,
        curve=curve if _is_exact(curve, peak_allocated) else None,
    )


def _of_step(windows: dict[Window, PhaseMemory], step: str) -> dict[str, PhaseMemory]:
    return {phase: memory for (name, phase), memory in windows.items() if name == step}


def _breakdown(
    trace: AllocationTrace, peak_allocated: int, peak_phase: PhaseName
) -> Breakdown | None:
    """The traced peak by category, brought up to the allocator's number.

    On CUDA the allocator also holds memory that no tensor shows (cuBLAS workspaces, rounding to 512
    bytes): this difference is "other". The trace is of a steady training step, so a peak during the
    load or the evaluation has no breakdown. Neither has a peak that the trace misses by much.
    """
    if trace.device_type == "cuda" and peak_phase in ("load", "eval"):
        return None
    missing = peak_allocated - trace.peak
    if missing < 0 or missing > 0.25 * peak_allocated:
        return None
    return breakdown(trace.breakdown(), peak_allocated)


def _is_exact(curve: MemoryCurve | None, peak_allocated: int) -> bool:
    """Whether a curve leads to the peak, which may be in a phase that was not traced."""
    if curve is None or curve.allocated_bytes[curve.peak] != peak_allocated:
        return False
    return all(curve.rest_bytes(moment) >= 0 for moment in range(len(curve.event)))


def count_parameters(setup: Setup) -> tuple[int, int]:
    """(trainable, all) parameters; peft knows that a byte holds two four-bit weights."""
    model = setup.model
    if hasattr(model, "get_nb_trainable_parameters"):
        trainable, total = model.get_nb_trainable_parameters()
        return int(trainable), int(total)
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(n for n, train in sizes if train), sum(n for n, _ in sizes)
