"""Measure one rung at one micro-batch size: memory first, then time.

Memory is watched during the load, a first step (which creates the optimizer states), a steady step
and, on request, an evaluation step. Then the same step is timed with nothing watching, except on an
emulated GPU, where no kernel runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.records.config import is_zero, uses_host
from oomdoctor.records.facts.categories import GRADIENTS, INPUTS, OPTIMIZER, WEIGHTS
from oomdoctor.records.measurement import Measurement
from oomdoctor.records.result import ProbeJob
from oomdoctor.worker.measuring import meters, nvml
from oomdoctor.worker.measuring.summary import summarise
from oomdoctor.worker.measuring.timing import time_steps
from oomdoctor.worker.protocol.progress import Marks, PhaseFile
from oomdoctor.worker.protocol.rank import own_device
from oomdoctor.worker.tracing.trace import AllocationTrace
from oomdoctor.worker.training import optimizers
from oomdoctor.worker.training.batch import Batch, logits_shape, micro_batches
from oomdoctor.worker.training.build import Setup, build, import_libraries
from oomdoctor.worker.training.step import evaluation_step, training_step, whole_step
from oomdoctor.worker.training.techniques import compilation

if TYPE_CHECKING:
    import torch

MEMORY_STEPS = ("first", "steady")


def measure(job: ProbeJob, progress: PhaseFile) -> Measurement:
    """Measure peaks, breakdown and times of the job's rung at its micro-batch size.

    Raises:
        torch.OutOfMemoryError: the device's memory, or the budget on the CPU, is too small.
        UnsupportedError: the rung cannot run here.
    """

    progress.enter("init")
    device = own_device(job.device_type)
    meter = meters.for_job(job)
    if is_zero(job.config):
        nvml.number_devices()
    marks = Marks(progress)
    import_libraries()
    with meter.recording():
        _enter(meter, progress, "load", "load")
        setup = build(job, device, marks, on_host=meter.on_host)
        # With accumulation, later micro-steps also hold gradients: two steps show the worst case.
        count = min(2, job.config.accumulation_steps())
        batches = micro_batches(
            job.config, job.model.task, setup.model_config, device, count=count, seed=job.seed
        )
        trace = meter.trace_for_breakdown(*logits_shape(job.config, setup.task, setup.model_config))
        losses: list[float] = []
        for step in MEMORY_STEPS:
            losses.append(_memory_step(setup, batches, marks, meter, progress, step, trace))
        if job.evaluate:
            _enter(meter, progress, "eval", "eval")
            _evaluate(setup, job, device)
        _enter(meter, progress, "end", "timing")
    if device.type == "cuda" and not job.config.compile:  # the trace would see an eager step
        _trace_step(setup, batches, marks, trace)
    totals = meter.totals(optimizers.managed_bytes(setup.trainer.optimizer))
    if device.type == "cuda" and totals.overhead_bytes is None:
        setup.notes.append(
            "the driver does not report the size of the CUDA context, so the peak excludes it"
        )
    if device.type == "cpu" and uses_host(job.config):
        setup.notes.append(
            "on the CPU, host and device share one memory; offloaded tensors are not counted"
        )
    if not job.timed:
        return summarise(setup, meter, totals, trace, losses, None, 0)
    if job.config.compile and device.type == "cpu":
        compilation.begin_to_compile(setup.model)
        marks.listen(lambda phase: None)
        training_step(setup, batches, marks)  # this step compiles, so it is not timed
    timing, skipped = time_steps(setup, batches, job, marks)
    return summarise(setup, meter, totals, trace, losses, timing, skipped)


def _enter(meter: meters.Meter, progress: PhaseFile, step: str, phase: str) -> None:
    progress.enter(phase)
    meter.enter(step, phase)


def _memory_step(
    setup: Setup,
    batches: list[Batch],
    marks: Marks,
    meter: meters.Meter,
    progress: PhaseFile,
    step: str,
    trace: AllocationTrace,
) -> float:
    """Run one watched step; returns its loss."""

    def watch(phase: str) -> None:
        _enter(meter, progress, step, phase)
        if phase == "optimizer" and setup.device.type == "cpu":
            trace.adopt(gradients(setup), GRADIENTS)

    marks.listen(watch)
    losses = whole_step(setup, batches, marks)
    if setup.device.type == "cpu":
        trace.adopt(optimizers.state_tensors(setup.trainer.optimizer), OPTIMIZER)
        trace.adopt(weights(setup), WEIGHTS)
    return float(sum(float(loss) for loss in losses))


def _trace_step(setup: Setup, batches: list[Batch], marks: Marks, trace: AllocationTrace) -> None:
    """Run a step under the trace, on CUDA only, to find out what the peak consists of."""
    trace.adopt(weights(setup), WEIGHTS)
    trace.adopt(optimizers.state_tensors(setup.trainer.optimizer), OPTIMIZER)
    trace.adopt((tensor for batch in batches for tensor in batch.values()), INPUTS)

    def watch(phase: str) -> None:
        trace.enter(phase)
        if phase == "optimizer":
            trace.adopt(gradients(setup), GRADIENTS)

    marks.listen(watch)
    with trace.recording():
        training_step(setup, batches, marks)


def _evaluate(setup: Setup, job: ProbeJob, device: torch.device) -> None:
    config = job.config.with_micro_batch(job.eval_batch_size)
    batch = micro_batches(
        config, job.model.task, setup.model_config, device, count=1, seed=job.seed
    )[0]
    evaluation_step(setup, batch)


def gradients(setup: Setup) -> list[torch.Tensor]:
    """The gradients that there are now."""
    return [p.grad for p in setup.model.parameters() if p.grad is not None]


def weights(setup: Setup) -> list[torch.Tensor]:
    """The parameters and buffers of the model."""
    return [*setup.model.parameters(), *setup.model.buffers()]
