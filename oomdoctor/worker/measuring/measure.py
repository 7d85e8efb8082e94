"""One rung at one micro-batch size, measured: memory steps first, then timed steps.

Load, a first step (optimizer states are born), a steady step and, if asked for, an evaluation step
are watched for memory; then the same step is timed with nothing watching.
"""

from __future__ import annotations

from typing import Any

from oomdoctor.records.measurement import Measurement
from oomdoctor.records.result import ProbeJob
from oomdoctor.worker.measuring import meters
from oomdoctor.worker.measuring.summary import summarise
from oomdoctor.worker.measuring.timing import time_steps
from oomdoctor.worker.protocol.progress import Marks, PhaseFile
from oomdoctor.worker.tracing.trace import GRADIENTS, INPUTS, OPTIMIZER, WEIGHTS, AllocationTrace
from oomdoctor.worker.training import compilation, optimizers
from oomdoctor.worker.training.batch import logits_shape, micro_batches
from oomdoctor.worker.training.build import Setup, build, import_libraries
from oomdoctor.worker.training.offload import uses_host
from oomdoctor.worker.training.step import evaluation_step, training_step

MEMORY_STEPS = ("first", "steady")
MAX_SKIPPED = 25  # the scale starts at 2**16 and halves with each skipped step


def measure(job: ProbeJob, progress: PhaseFile) -> Measurement:
    """Peaks, breakdown and times of the job's rung at its micro-batch size.

    Raises:
        torch.OutOfMemoryError: the device, or the budget on the CPU, was not enough.
        UnsupportedError: the rung cannot be run here.
    """
    import torch

    progress.enter("init")
    device = torch.device("cuda:0" if job.device_type == "cuda" else "cpu")
    meter = meters.for_job(job)
    marks = Marks(progress)
    import_libraries()
    with meter.recording():
        _enter(meter, progress, "load", "load")
        setup = build(job, device, marks, on_host=meter.on_host)
        # With accumulation the later micro-steps hold gradients as well: two show the worst case.
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
        setup.notes.append("the driver does not tell the context's bytes: they are not in the peak")
    if device.type == "cpu" and uses_host(job.config):
        setup.notes.append("host and device are one memory here: what is offloaded is not counted")
    if job.config.compile and device.type == "cpu":
        compilation.begin_to_compile()
        marks.listen(lambda phase: None)
        training_step(setup, batches, marks)  # compiles, which is no step to time
    timing, skipped = time_steps(setup, batches, job, marks)
    return summarise(setup, meter, totals, trace, losses, timing, skipped)


def _enter(meter: meters.Meter, progress: PhaseFile, step: str, phase: str) -> None:
    progress.enter(phase)
    meter.enter(step, phase)


def _memory_step(
    setup: Setup,
    batches: list[dict[str, Any]],
    marks: Marks,
    meter: meters.Meter,
    progress: PhaseFile,
    step: str,
    trace: AllocationTrace,
) -> float:
    """One watched step; the loss of the whole step.

    Repeated while the gradient scaler skips it: a skipped first step leaves no optimizer states.
    """

    def watch(phase: str) -> None:
        _enter(meter, progress, step, phase)
        if phase == "optimizer" and setup.device.type == "cpu":
            trace.adopt(_gradients(setup), GRADIENTS)

    marks.listen(watch)
    losses = training_step(setup, batches, marks)
    for _ in range(MAX_SKIPPED):
        if not setup.trainer.accelerator.optimizer_step_was_skipped:
            break
        losses = training_step(setup, batches, marks)
    if setup.device.type == "cpu":
        trace.adopt(optimizers.state_tensors(setup.trainer.optimizer), OPTIMIZER)
        trace.adopt(_weights(setup), WEIGHTS)
    return float(sum(float(loss) for loss in losses))


def _trace_step(
    setup: Setup, batches: list[dict[str, Any]], marks: Marks, trace: AllocationTrace
) -> None:
    """A step under the trace, on CUDA only, to say what the peak is made of."""
    trace.adopt(_weights(setup), WEIGHTS)
    trace.adopt(optimizers.state_tensors(setup.trainer.optimizer), OPTIMIZER)
    trace.adopt((tensor for batch in batches for tensor in batch.values()), INPUTS)

    def watch(phase: str) -> None:
        trace.enter(phase)
        if phase == "optimizer":
            trace.adopt(_gradients(setup), GRADIENTS)

    marks.listen(watch)
    with trace.recording():
        training_step(setup, batches, marks)


def _evaluate(setup: Setup, job: ProbeJob, device: Any) -> None:
    config = job.config.with_micro_batch(job.eval_batch_size)
    batch = micro_batches(
        config, job.model.task, setup.model_config, device, count=1, seed=job.seed
    )[0]
    evaluation_step(setup, batch)


def _gradients(setup: Setup) -> list[Any]:
    return [p.grad for p in setup.model.parameters() if p.grad is not None]


def _weights(setup: Setup) -> list[Any]:
    return [*setup.model.parameters(), *setup.model.buffers()]
