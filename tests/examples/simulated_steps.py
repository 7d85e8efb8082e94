"""Simulated steps of tiny models, and how far they are from measured ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oomdoctor.analysis.simulator.playback import RecordedRung
from oomdoctor.records.configuration.config import held_micro_batches
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import SimulationRequest
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.measuring.measure import measure
from oomdoctor.worker.protocol import PhaseFile
from oomdoctor.worker.simulating.simulate import simulated_rung


def quick(job: ProbeJob) -> ProbeJob:
    """The job with as little timing as possible."""
    return replace(job, timing_limit_s=0.01, min_timed_steps=1, max_timed_steps=1)


def simulation_job(job: ProbeJob, sizes: tuple[int, ...] = (2,), **changes: Any) -> ProbeJob:
    """The job as one for the simulator; `changes` are fields of its request."""
    request = SimulationRequest(sizes, (), **changes)
    return replace(job, mode="simulate", simulation=request)


def simulated_peaks(job: ProbeJob, size: int = 2, **changes: Any) -> dict[tuple[str, str], int]:
    """Unrounded peaks of tensor bytes by (step, phase)."""
    shallow = bool(changes.get("stacks"))
    with simulated_rung(
        simulation_job(job, **changes), PhaseFile(None), shallow=shallow
    ) as recorder:
        rung = RecordedRung(recorder.whole.depths)
        recorded = recorder.record(size)
        rung.add(size, recorded.tape, recorded.taken)
    accumulates = size < job.config.effective_batch_size
    held = held_micro_batches(
        job.config.with_micro_batch(size), on_cpu=not changes.get("as_cuda", True)
    )
    layout = rung.layout(size, accumulates=accumulates, held=held)
    return {window: peak.size for window, peak in layout.outline.peaks(layout.sizes).items()}


def differences(job: ProbeJob) -> dict[tuple[str, str], int]:
    """Bytes that a simulation has more than a measurement, by (step, phase)."""
    with clean_slate():
        measured = measure(quick(job), PhaseFile(None))
    size = job.config.micro_batch_size
    assert isinstance(size, int)
    with clean_slate():
        predicted = simulated_peaks(job, size, as_cuda=False)
    return {
        (step, phase): predicted[step, phase] - memory.peak_allocated_bytes
        for step, phases in (("first", measured.first_step), ("steady", measured.steady))
        for phase, memory in phases.items()
    }
