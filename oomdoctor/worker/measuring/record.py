"""Record some steps of a rung in a file: a memory snapshot, or a trace of operators and kernels.

The steps are those of a measurement. A snapshot is also written if memory runs out.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from oomdoctor.analysis.allocator.records import Mark
from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.analysis.simulator.tape import Tape
from oomdoctor.records.facts.categories import INPUTS, OPTIMIZER, WEIGHTS
from oomdoctor.records.job.result import ProbeJob, RecordingRequest
from oomdoctor.records.report.run import Place
from oomdoctor.snapshot.phases import own_frames
from oomdoctor.snapshot.writing import Allocations, write_snapshot
from oomdoctor.worker.measuring import meters
from oomdoctor.worker.measuring.measure import built, of_step, watched, weights
from oomdoctor.worker.protocol import PhaseFile
from oomdoctor.worker.training import optimizers
from oomdoctor.worker.training.batch import tensors_of
from oomdoctor.worker.training.build import import_libraries
from oomdoctor.worker.training.step import training_step, whole_step

_STEPS = 3  # the first one makes the optimizer's states
_MOST_EVENTS = 2_000_000


def record(job: ProbeJob, progress: PhaseFile) -> None:
    """Run a few steps of the job's rung at its micro-batch size, and write the file.

    Raises:
        torch.OutOfMemoryError: the device's memory, or the budget on the CPU, is too small.
        UnsupportedError: the rung cannot run here.
        OSError: the file cannot be written.
    """
    assert job.recording is not None
    progress.enter("init")
    import_libraries(job.config)
    if job.recording.kind == "trace":
        _record_trace(job, job.recording, meters.for_job(job), progress)
    elif job.device_type == "cuda":
        _record_history(job, job.recording, progress)
    else:
        _record_counted(job, job.recording, meters.CpuMeter(job.budget_bytes), progress)


def _record_history(job: ProbeJob, asked: RecordingRequest, progress: PhaseFile) -> None:
    """On CUDA: torch's own history, with the stacks of Python, from the first allocation on."""
    history = torch.cuda.memory
    history._record_memory_history(max_entries=_MOST_EVENTS, stacks="python")
    try:
        meter = meters.for_job(job)
        setup, held, marks = built(job, meter, progress)
        for _ in range(_STEPS):
            whole_step(setup, of_step(held, job), marks)
    finally:
        history._dump_snapshot(asked.file)
        history._record_memory_history(enabled=None)


def _record_counted(
    job: ProbeJob, asked: RecordingRequest, meter: meters.CpuMeter, progress: PhaseFile
) -> None:
    """On the CPU: the tensors that are counted, as if PyTorch's allocator on CUDA served them."""
    trace = meter.trace
    with meter.recording():
        try:
            setup, held, marks = built(job, meter, progress)
            trace.adopt(weights(setup), WEIGHTS)
            trace.adopt(tensors_of(held), INPUTS)
            marks.listen(partial(watched, setup, meter, progress, "", trace))
            for _ in range(_STEPS):
                whole_step(setup, of_step(held, job), marks)
                trace.adopt(optimizers.state_tensors(setup.trainer.optimizer), OPTIMIZER)
        finally:
            write_snapshot(_allocations(trace.finish()), Path(asked.file))


def _allocations(tape: Tape) -> Allocations:
    def frames(number: int, phase: str) -> tuple[Place, ...]:
        block = tape.blocks[number]
        return own_frames(block.module, block.operator, phase, block.category)

    return Allocations(
        events=tape.events,
        sizes=[block.size for block in tape.blocks],
        marks=[Mark(first, phase) for first, _, phase in tape.windows],
        frames=frames,
        settings=AllocatorSettings(),
        written_by="oomdoctor probe: tensors counted on the CPU",
    )


def _record_trace(
    job: ProbeJob, asked: RecordingRequest, meter: meters.Meter, progress: PhaseFile
) -> None:
    """A steady step under torch's profiler, in the format of chrome://tracing and Perfetto."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if job.device_type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    setup, held, marks = built(job, meter, progress)
    whole_step(setup, of_step(held, job), marks)
    with profile(activities=activities, record_shapes=True, profile_memory=True) as profiled:
        training_step(setup, of_step(held, job), marks)
        if job.device_type == "cuda":
            torch.cuda.synchronize()
    profiled.export_chrome_trace(asked.file)
