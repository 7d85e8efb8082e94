"""Attempts from a simulated rung, as if each micro-batch size had been tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oomdoctor.analysis.search.micro_batch import divisors
from oomdoctor.analysis.simulator.peak_uncertainty import PeakErrors
from oomdoctor.records.config import TrainConfig, is_zero
from oomdoctor.records.machine import ByteRange
from oomdoctor.records.result import Attempt, ProbeResult
from oomdoctor.records.simulation import DevicePrediction, PredictedSize, Prediction, Target
from oomdoctor.units import format_bytes, format_percent

# The assumed relative error of a predicted peak if no prediction was ever compared.
_ASSUMED_ERROR = 0.02
# With DeepSpeed only tensors are predicted. Where its engine ran for a 7B model, on 3 to 6 emulated
# GPUs, the allocator reserved 12% to 22% more than them.
_BEYOND_TENSORS = 0.25
# More sizes are not worth their replays: those between two doublings differ by little.
_MAX_SIZES = 12


def sizes_to_predict(config: TrainConfig, fixed: int | None) -> tuple[int, ...]:
    """The micro-batch sizes to predict for a rung, ascending: the fixed one, or the divisors.

    If there are too many divisors, it takes the largest one up to each power of two.
    """
    if fixed is not None:
        return (fixed,)
    sizes = divisors(config.rank_batch_size())
    if len(sizes) <= _MAX_SIZES:
        return sizes
    doublings = [1 << power for power in range(config.rank_batch_size().bit_length())]
    return tuple(sorted({max(s for s in sizes if s <= doubled) for doubled in doublings}))


def prediction_for(predictions: Sequence[Prediction], target: str) -> Prediction | None:
    """The prediction for a target; None if there is none."""
    for prediction in predictions:
        if any(predicted.target == target for predicted in prediction.sizes[0].devices):
            return prediction
    return None


def attempts_of_prediction(
    config: TrainConfig, prediction: Prediction, target: Target, simulated: Attempt
) -> tuple[Attempt, ...]:
    """An attempt for each predicted size on a target. The first has the time of the simulation.

    `simulated` is the attempt of the simulation itself.
    """
    attempts = []
    for number, size in enumerate(prediction.sizes):
        predicted = next(f for f in size.devices if f.target == target.name)
        attempts.append(
            _attempt(
                config,
                size,
                predicted,
                target,
                replace(simulated, elapsed_s=0.0) if number else simulated,
            )
        )
    return tuple(attempts)


def with_borderline_note(
    result: ProbeResult, context: ByteRange, usable_bytes: int, errors: PeakErrors
) -> ProbeResult:
    """The row, with a note if its peak is closer to the limit than the prediction error."""
    if not is_borderline(result, context, usable_bytes, errors):
        return result
    if _has_tensors_only(result):
        note = "borderline: with what the allocator reserves beyond tensors it may not fit"
        return replace(result, notes=(*result.notes, note))
    share = format_percent(_error(result, errors), 1)
    note = f"borderline: predictions like this are off by up to {share}"
    return replace(result, notes=(*result.notes, note))


def is_borderline(
    result: ProbeResult, context: ByteRange, usable_bytes: int, errors: PeakErrors
) -> bool:
    """Whether a predicted peak is closer to the limit than the prediction error."""
    if result.peak_device_bytes is None or result.evidence != "predicted":
        return False
    share = _error(result, errors)
    more = share + (_BEYOND_TENSORS if _has_tensors_only(result) else 0.0)
    vllm = _vllm_bytes(result, context)  # it takes exactly its share
    held = result.peak_device_bytes - context.likely - vllm
    low = held * (1 - share) + context.low + vllm
    high = held * (1 + more) + context.high + vllm
    return low <= usable_bytes < high


def _vllm_bytes(result: ProbeResult, context: ByteRange) -> int:
    measured = result.measurement
    if not result.config.vllm_gpu_memory_utilization or measured is None:
        return 0
    return (measured.overhead_bytes or context.likely) - context.likely


def _has_tensors_only(result: ProbeResult) -> bool:
    """Whether a predicted peak leaves out what the allocator reserves beyond tensors."""
    return result.outcome == "fits" and is_zero(result.config)


def _error(result: ProbeResult, errors: PeakErrors) -> float:
    """The share that the predicted peak may be off by."""
    known = errors.share(result.config.method, "reserved")
    return _ASSUMED_ERROR if known is None else known


def _attempt(
    config: TrainConfig,
    size: PredictedSize,
    predicted: DevicePrediction,
    target: Target,
    simulated: Attempt,
) -> Attempt:
    measured = size.measurement
    allocated = measured.peak_allocated_bytes
    reserved = predicted.peak_reserved_bytes or measured.peak_reserved_bytes
    # Without a replay only a lower bound is known: the tensors alone.
    peak = max(allocated, reserved or 0) + target.overhead_bytes
    reason = None
    if not predicted.fits:
        least = "at least " if reserved is None else ""
        short = format_bytes(peak - target.usable_bytes)
        reason = f"needs {least}{format_bytes(peak)}, short by {least}{short}"
    return Attempt(
        config=config.with_micro_batch(size.micro_batch_size),
        outcome="fits" if predicted.fits else "oom",
        measurement=replace(
            measured,
            peak_reserved_bytes=reserved,
            peak_device_bytes=peak,
            overhead_bytes=target.overhead_bytes,
            timing=predicted.timing,
        ),
        oom=predicted.oom,
        failure=None,
        reason=reason,
        elapsed_s=simulated.elapsed_s,
        folder=simulated.folder,
        cached_at=simulated.cached_at,
    )
