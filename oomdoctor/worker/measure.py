"""One rung at one micro-batch size, measured: memory steps first, then timed steps.

Load, a first step (optimizer states are born), a steady step and, if asked for, an evaluation step
are watched for memory; then the same step is timed with nothing watching.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oomdoctor.records.result import Breakdown, Measurement, PhaseMemory, PhaseName, ProbeJob
from oomdoctor.worker import meters, optimizers
from oomdoctor.worker.batch import micro_batches
from oomdoctor.worker.build import Setup, build
from oomdoctor.worker.inspection import installed_versions
from oomdoctor.worker.progress import PhaseFile
from oomdoctor.worker.step import evaluation_step, training_step
from oomdoctor.worker.timing import time_steps
from oomdoctor.worker.trace import GRADIENTS, OPTIMIZER, OTHER, WEIGHTS, AllocationTrace

MEMORY_STEPS = ("first", "steady")
MAX_SKIPPED = 25  # the scale starts at 2**16 and halves with each skipped step


class Marks:
    """The phase marks of a step go to whoever listens: the meter, or the stopwatch."""

    def __init__(self) -> None:
        self._listener: Callable[[str], None] = lambda phase: None

    def listen(self, listener: Callable[[str], None]) -> None:
        self._listener = listener

    def __call__(self, phase: str) -> None:
        self._listener(phase)


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
    marks = Marks()
    with meter.recording():
        _enter(meter, progress, "load", "load")
        setup = build(job, device, marks)
        # With accumulation the later micro-steps hold gradients as well: two show the worst case.
        count = min(2, job.config.accumulation_steps())
        batches = micro_batches(
            job.config, job.model.task, setup.model_config, device, count=count, seed=job.seed
        )
        trace = meter.trace_for_breakdown(*_logits_shape(job, setup))
        losses: list[float] = []
        for step in MEMORY_STEPS:
            losses.append(_memory_step(setup, batches, marks, meter, progress, step, trace))
        if job.evaluate:
            _enter(meter, progress, "eval", "eval")
            _evaluate(setup, job, device)
        _enter(meter, progress, "end", "timing")
    if device.type == "cuda":
        _trace_step(setup, batches, marks, trace)
    totals = meter.totals()
    timing, skipped = time_steps(setup, batches, job, marks.listen)
    return _measurement(job, setup, meter, totals, trace, losses, timing, skipped)


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
    trace.adopt((tensor for batch in batches for tensor in batch.values()), OTHER)

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


def _logits_shape(job: ProbeJob, setup: Setup) -> tuple[int, int]:
    """(vocabulary, tokens of a micro-batch) where the model puts out a score a token."""
    if job.model.task not in ("causal-lm", "masked-lm", "seq2seq-lm"):
        return 0, 0
    size = job.config.micro_batch_size
    assert isinstance(size, int)
    # Shifted labels drop one position of each row.
    tokens = size * (job.config.sequence_length - 1)
    return int(setup.model_config.get_text_config().vocab_size), tokens


def _measurement(
    job: ProbeJob,
    setup: Setup,
    meter: meters.Meter,
    totals: meters.DeviceTotals,
    trace: AllocationTrace,
    losses: list[float],
    timing: Any,
    skipped: int,
) -> Measurement:
    windows = {w: memory for w, memory in meter.peaks.items() if w[0] != "end"}
    phases = _worst_by_phase(windows)
    peak_phase: Any = max(phases, key=lambda name: _decisive(phases[name]))
    peak_allocated = max(memory.peak_allocated_bytes for memory in phases.values())
    reserved = [m.peak_reserved_bytes for m in phases.values() if m.peak_reserved_bytes is not None]
    peak_reserved = max(reserved) if reserved else None
    peak_device = None
    if peak_reserved is not None and totals.overhead_bytes is not None:
        peak_device = peak_reserved + totals.overhead_bytes
    trainable, parameters = _count_parameters(setup)
    return Measurement(
        peak_allocated_bytes=peak_allocated,
        peak_reserved_bytes=peak_reserved,
        peak_device_bytes=peak_device,
        overhead_bytes=totals.overhead_bytes,
        peak_rss_bytes=meters.peak_rss_bytes(),
        peak_phase=peak_phase,
        phases=phases,
        first_step=_of_step(windows, "first"),
        steady=_of_step(windows, "steady"),
        breakdown=_breakdown(trace, peak_allocated, peak_phase),
        allocation_retries=totals.allocation_retries,
        managed_bytes=optimizers.managed_bytes(setup.trainer.optimizer),
        timing=timing,
        attention_kernel=_attention_kernel(setup, trace),
        trainable_parameters=trainable,
        parameters=parameters,
        losses=tuple(losses),
        skipped_optimizer_steps=skipped,
        notes=tuple(setup.notes),
        versions=installed_versions(),
        memory_stats=totals.memory_stats,
    )


def _decisive(memory: PhaseMemory) -> tuple[int, int]:
    return memory.peak_allocated_bytes, memory.peak_reserved_bytes or 0


def _worst_by_phase(windows: dict[meters.Window, PhaseMemory]) -> dict[str, PhaseMemory]:
    worst: dict[str, PhaseMemory] = {}
    for (_, phase), memory in windows.items():
        before = worst.get(phase, memory)
        worst[phase] = PhaseMemory(
            max(before.peak_allocated_bytes, memory.peak_allocated_bytes),
            None
            if memory.peak_reserved_bytes is None
            else max(before.peak_reserved_bytes or 0, memory.peak_reserved_bytes),
        )
    return worst


def _of_step(windows: dict[meters.Window, PhaseMemory], step: str) -> dict[str, PhaseMemory]:
    return {phase: memory for (name, phase), memory in windows.items() if name == step}


def _breakdown(
    trace: AllocationTrace, peak_allocated: int, peak_phase: PhaseName
) -> Breakdown | None:
    """What the traced peak is made of, brought up to the allocator's own figure.

    On CUDA the allocator also holds what operators keep inside themselves (cuBLAS workspaces,
    rounding to 512 bytes): that difference is "other". The trace is of a steady training step, so
    a peak while loading or evaluating has no breakdown; nor has one whose trace is far off.
    """
    if trace.device_type == "cuda" and peak_phase in ("load", "eval"):
        return None
    parts = dict(trace.breakdown())
    missing = peak_allocated - trace.peak
    if missing < 0 or missing > 0.25 * peak_allocated:
        return None
    return Breakdown(
        weights_bytes=parts["weights"],
        gradients_bytes=parts["gradients"],
        optimizer_bytes=parts["optimizer"],
        activations_bytes=parts["activations"],
        logits_bytes=parts["logits"],
        other_bytes=parts["other"] + missing,
    )


def _attention_kernel(setup: Setup, trace: AllocationTrace) -> str | None:
    """The attention that really ran, from the operators that were seen."""
    names = " ".join(sorted(trace.attention_ops))
    chosen = str(getattr(setup.model_config, "_attn_implementation", None) or "")
    if setup.notes and "eager" in setup.notes[0]:
        chosen = "eager"
    for part, kernel in _KERNELS:
        if part in names:
            return kernel
    if chosen == "sdpa":
        return "sdpa: math"
    return chosen or None


_KERNELS = (
    ("_scaled_dot_product_flash_attention_for_cpu", "sdpa: flash (CPU)"),
    ("_scaled_dot_product_flash_attention", "sdpa: flash"),
    ("_scaled_dot_product_efficient_attention", "sdpa: memory-efficient"),
    ("_scaled_dot_product_cudnn_attention", "sdpa: cuDNN"),
    ("_scaled_dot_product_fused_attention_overrideable", "sdpa: fused"),
    ("flash_attn_3", "flash_attention_3"),
    ("flash_attn", "flash_attention_2"),
    ("flex_attention", "flex_attention"),
)


def _count_parameters(setup: Setup) -> tuple[int, int]:
    """(trainable, all) parameters; peft knows that four-bit weights are packed two to a byte."""
    model = setup.model
    if hasattr(model, "get_nb_trainable_parameters"):
        trainable, total = model.get_nb_trainable_parameters()
        return int(trainable), int(total)
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(n for n, train in sizes if train), sum(n for n, _ in sizes)
