"""An attempt at a training step, judged by all moments of the job that the step is part of.

`plan` and `probe` ask here, so that they agree: a GRPO job that cannot generate does not fit,
whatever its step needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oomdoctor.analysis.fit import borderline_note, is_borderline
from oomdoctor.analysis.memory.rollout import moments_of
from oomdoctor.analysis.search.dominance import Setting
from oomdoctor.records.facts.phases import PHASES
from oomdoctor.records.job.measurement import Breakdown, Measurement, Moment, PhaseMemory
from oomdoctor.records.job.result import Attempt
from oomdoctor.records.job.simulation import PeakError
from oomdoctor.units import format_bytes


@dataclass(frozen=True, slots=True)
class Room:
    """A device: what a job may use of its total, and how far predicted peaks may be off."""

    usable_bytes: int
    total_bytes: int
    error: PeakError | None = None


def with_moments(step: Attempt, setting: Setting, room: Room) -> Attempt:
    """The attempt with the moments of its job, and the peaks of the one that needs the most."""
    measured = step.measurement
    if measured is None:
        return step
    moments = moments_of(
        step.config, setting.model_config, setting.counts, measured, room.total_bytes
    )
    step = replace(step, measurement=replace(measured, moments=moments))
    worst = max(moments, key=lambda moment: moment.device_bytes, default=None)
    if worst is None:
        return step
    contexts = _contexts(moments[0], measured)
    if worst.name == "step":
        return _with_models_beside(worst, contexts, step, room)
    more = contexts + worst.engine_bytes - moments[0].engine_bytes
    return _judged_by(worst, more, step, room)


def _contexts(step: Moment, measured: Measurement) -> int:
    """The CUDA contexts of other processes on the card."""
    beside = step.allocated_bytes - measured.peak_allocated_bytes
    return step.device_bytes - (measured.peak_device_bytes or 0) - beside


def _with_models_beside(worst: Moment, contexts: int, step: Attempt, room: Room) -> Attempt:
    """The attempt at a step with what other models and processes have on the card."""
    measured = step.measurement
    assert measured is not None
    more = worst.allocated_bytes - measured.peak_allocated_bytes
    if not (more or contexts):
        return step
    parts = measured.breakdown
    noted = (f"{format_bytes(more)} of other models, computed, are on the card",) if more else ()
    peaks = replace(
        measured,
        peak_allocated_bytes=worst.allocated_bytes,
        peak_reserved_bytes=(measured.peak_reserved_bytes or 0) + more,
        peak_device_bytes=worst.device_bytes,
        overhead_bytes=(measured.overhead_bytes or 0) + contexts,
        breakdown=parts and replace(parts, other_bytes=parts.other_bytes + more),
        notes=(*measured.notes, *noted),
    )
    return _judged(replace(step, measurement=peaks), room)


def _judged_by(worst: Moment, more: int, step: Attempt, room: Room) -> Attempt:
    """The attempt with the peaks of its worst moment, at which the engine has `more` bytes."""
    measured = step.measurement
    assert measured is not None and worst.name != "step"
    allocated, device = worst.allocated_bytes, worst.device_bytes
    outside = (measured.overhead_bytes or 0) + more
    reserved = device - outside
    parts = measured.breakdown
    if parts is not None:
        weights = min(parts.weights_bytes, allocated)
        states = 0 if step.config.rollout_offload != "none" else parts.optimizer_bytes
        parts = Breakdown(weights, 0, states, 0, 0, allocated - weights - states)
    peaks = replace(
        measured,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_device_bytes=device,
        overhead_bytes=outside,
        peak_phase=worst.name,
        phases={**measured.phases, worst.name: PhaseMemory(allocated, reserved)},
        breakdown=parts,
    )
    if room.error is None:  # what was measured is the step
        step_bytes = format_bytes(measured.deciding_peak_bytes())
        moment = PHASES[worst.name].noun
        computed = f"the step took {step_bytes}; {moment}, which needs more, is computed"
        peaks = replace(peaks, notes=(*measured.notes, computed))
    return _judged(replace(step, measurement=peaks), room)


def _judged(step: Attempt, room: Room) -> Attempt:
    """The attempt, judged by the peaks that it has now."""
    measured = step.measurement
    assert measured is not None and measured.peak_device_bytes is not None
    device, outside = measured.peak_device_bytes, measured.overhead_bytes or 0
    reserved = measured.peak_reserved_bytes or 0
    judged = replace(step, oom=None, reason=None, borderline=None)
    error = room.error
    if error is not None and is_borderline(reserved, outside, room.usable_bytes, error):
        near = borderline_note(error, reserved, tensors_only=False)
        judged = replace(judged, borderline=near)
    if device <= room.usable_bytes:
        return judged
    return replace(judged, outcome="oom", reason=needs(device, room.usable_bytes))


def needs(peak: int, usable: int, least: str = "") -> str:
    """`needs 27.4 GiB, short by 4.39 GiB`; `least` comes before each size."""
    return f"needs {least}{format_bytes(peak)}, short by {least}{format_bytes(peak - usable)}"
