"""Measure one rung at one micro-batch size: memory first, then time.

Memory is watched during the load, a first step (which creates the optimizer states), a steady step
and, on request, an evaluation step. Then the same step is timed with nothing watching, except on an
emulated GPU, where no kernel runs. In a step that is traced, the allocator's peak is read after
every operator: a kernel takes memory that no tensor shows, and the allocator rounds.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch

from oomdoctor.analysis.memory.curve import Stretch
from oomdoctor.records.configuration.config import TrainConfig, is_zero, uses_host
from oomdoctor.records.facts.categories import GRADIENTS, INPUTS, OPTIMIZER, WEIGHTS
from oomdoctor.records.facts.optimizers import compiles_its_step
from oomdoctor.records.job.measurement import Measurement
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.measuring import meters, nvml
from oomdoctor.worker.measuring.summary import summarise
from oomdoctor.worker.measuring.timing import time_steps
from oomdoctor.worker.protocol import Marks, PhaseFile, own_device
from oomdoctor.worker.tracing.trace import AllocationTrace
from oomdoctor.worker.training import optimizers
from oomdoctor.worker.training.batch import (
    Batch,
    held_batches,
    logits_shape,
    micro_batches,
    tensors_of,
)
from oomdoctor.worker.training.build import build, import_libraries
from oomdoctor.worker.training.setup import Setup
from oomdoctor.worker.training.step import evaluation_step, training_step, whole_step
from oomdoctor.worker.training.techniques import compilation

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
    import_libraries(job.config)
    with meter.recording(), _eager_where_watched(job):
        setup, held, marks = built(job, meter, progress)
        batches = of_step(held, job)
        trace = meter.trace_for_breakdown()
        trace.vocabulary, trace.tokens = logits_shape(setup, job.config)
        losses: list[float] = []
        for step in MEMORY_STEPS:
            marks.listen(partial(watched, setup, meter, progress, step, trace))
            whole_step(setup, batches, marks)
            if device.type == "cpu":
                trace.adopt(optimizers.state_tensors(setup.trainer.optimizer), OPTIMIZER)
                trace.adopt(weights(setup), WEIGHTS)
            losses.append(setup.books.logged())
        if job.evaluate:
            enter(meter, progress, "eval", "eval")
            config = job.config.with_micro_batch(job.eval_batch_size)
            evaluation_step(setup, micro_batches(setup, config, count=1)[0])
        enter(meter, progress, "end", "timing")
    totals = meter.totals(optimizers.managed_bytes(setup.trainer.optimizer))
    kernels = None
    if device.type == "cuda" and not _compiles(job.config):  # the trace would see an eager step
        trace.adopt(tensors_of(held), INPUTS)
        kernels = _trace_step(setup, batches, marks, trace)
    curve = trace.curve(without="end", peaks=None if kernels is None else kernels.of)
    if device.type == "cuda" and totals.overhead_bytes is None:
        setup.notes.append(
            "the driver does not report the size of the CUDA context, so the peak excludes it"
        )
    if device.type == "cpu" and uses_host(job.config):
        setup.notes.append(
            "on the CPU, host and device share one memory; offloaded tensors are not counted"
        )
    timing, skipped = None, 0
    if job.timed:
        if _compiles(job.config) and device.type == "cpu":
            if job.config.compile:
                compilation.begin_to_compile(setup.model)
            marks.listen(lambda phase: None)
            training_step(setup, batches, marks)  # this step compiles, so it is not timed
        timing, skipped = time_steps(setup, batches, job, marks)
    return summarise(setup, meter, totals, trace, curve, losses, timing, skipped)


def built(
    job: ProbeJob, meter: meters.Meter, progress: PhaseFile
) -> tuple[Setup, list[Batch], Marks]:
    """The rung on this rank's device, the micro-batches that the device holds, and its marks.

    What building leaves in cycles is collected: otherwise a step would have it by chance.
    """
    enter(meter, progress, "load", "load")
    device, marks = own_device(job.device_type), Marks(progress)
    setup = build(job, device, marks, on_host=meter.on_host)
    gc.collect()
    return setup, held_batches(setup), marks


def of_step(held: list[Batch], job: ProbeJob) -> list[Batch]:
    """The micro-batches of a step that is watched.

    With accumulation, later micro-steps also hold gradients: two of them show the worst case.
    """
    return held[: min(2, job.config.accumulation_steps())]


def enter(meter: meters.Meter, progress: PhaseFile, step: str, phase: str) -> None:
    """Begin a phase of a step."""
    progress.enter(phase)
    meter.enter(step, phase)


def watched(
    setup: Setup,
    meter: meters.Meter,
    progress: PhaseFile,
    step: str,
    trace: AllocationTrace,
    phase: str,
) -> None:
    """Begin a phase of a step that is watched; on the CPU the trace learns of the gradients."""
    enter(meter, progress, step, phase)
    if phase == "optimizer" and setup.device.type == "cpu":
        trace.adopt(gradients(setup), GRADIENTS)


def _eager_where_watched(job: ProbeJob) -> AbstractContextManager[object]:
    """On the CPU the trace must see each tensor, so no optimizer may compile its step."""
    if job.device_type != "cpu" or not compiles_its_step(job.config.optimizer):
        return nullcontext()
    eager: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return eager


def _compiles(config: TrainConfig) -> bool:
    """Whether torch.compile makes the model, parts of it or the optimizer's step."""
    return (
        config.compile
        or config.library == "unsloth"
        or config.attention == "flex_attention"
        or compiles_its_step(config.optimizer)
    )


def _trace_step(
    setup: Setup, batches: list[Batch], marks: Marks, trace: AllocationTrace
) -> KernelPeaks:
    """Run a step under the trace, on CUDA only, to find out what the peak consists of."""
    optimizer = setup.trainer.optimizer
    trace.adopt(optimizers.updated_tensors(optimizer), OPTIMIZER)  # some engines update copies
    trace.adopt(weights(setup), WEIGHTS)
    trace.adopt(optimizers.state_tensors(optimizer), OPTIMIZER)
    trace.adopt(optimizers.kept_gradients(optimizer), GRADIENTS)

    def watch(phase: str) -> None:
        trace.enter("steady", phase)
        trace.adopt(optimizers.kept_gradients(optimizer), GRADIENTS)
        if phase == "optimizer":
            trace.adopt(gradients(setup), GRADIENTS)

    marks.listen(watch)
    kernels = KernelPeaks(trace)
    trace.watcher = kernels.note
    with _naming(setup.model, trace), trace.recording():
        training_step(setup, batches, marks)
    return kernels


@contextmanager
def _naming(model: torch.nn.Module, trace: AllocationTrace) -> Iterator[None]:
    """Name gradients when they are made, and weights that were gathered when they are used.

    Engines give up both before the optimizer steps. ZeRO-3 puts together what it gathers in new
    tensors, which a module still has when its forward pass ends.
    """
    from torch.nn.modules.module import register_module_forward_hook

    def made(gradient: torch.Tensor) -> None:
        trace.adopt([gradient], GRADIENTS)

    def used(module: torch.nn.Module, *_: object) -> None:
        trace.adopt(module.parameters(recurse=False), WEIGHTS)

    parameters = list(model.parameters())
    hooks = [parameter.register_hook(made) for parameter in parameters if parameter.requires_grad]
    if any(hasattr(parameter, "ds_tensor") for parameter in parameters):
        hooks.append(register_module_forward_hook(used))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def gradients(setup: Setup) -> list[torch.Tensor]:
    """The gradients that there are now."""
    return [p.grad for p in setup.model.parameters() if p.grad is not None]


def weights(setup: Setup) -> list[torch.Tensor]:
    """The parameters and buffers of the model, and of the reference model if there is one."""
    models = [model for model in (setup.model, setup.reference) if model is not None]
    return [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]


class KernelPeaks:
    """The peak since the operator before, and which events of the tape happened by then."""

    def __init__(self, trace: AllocationTrace) -> None:
        self._tape = trace.tape
        self._ends: list[int] = []
        self._peaks: list[int] = []
        self._last = 0
        torch.cuda.reset_peak_memory_stats()

    def note(self, *_: object) -> None:
        """An operator has ended."""
        allocated = torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]
        self._ends.append(len(self._tape.events))
        self._peaks.append(allocated["peak"])
        self._last = allocated["current"]
        torch.cuda.reset_peak_memory_stats()

    def of(self, parts: Sequence[Stretch]) -> list[int]:
        """The peak of each part; after the last operator, memory is only freed."""
        return [peak or self._last for peak in peaks_of(parts, self._ends, self._peaks)]


def peaks_of(parts: Sequence[Stretch], ends: Sequence[int], peaks: Sequence[int]) -> list[int]:
    """The highest peak of the operators that each part has events of; 0 where there are none.

    By the end of each operator, `ends` events of the tape had happened.
    """
    highest = [0] * len(parts)
    begin, part = 0, 0
    for end, peak in zip(ends, peaks, strict=True):
        while part < len(parts) - 1 and parts[part].end <= begin:
            part += 1
        at = part
        highest[at] = max(highest[at], peak)
        while at < len(parts) - 1 and parts[at].end < end:
            at += 1
            highest[at] = max(highest[at], peak)
        begin = end
    return highest
