"""Attempts from a simulated rung, as if each micro-batch size had been tried."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.analysis.fit import borderline_note
from oomdoctor.analysis.search.dominance import Setting
from oomdoctor.analysis.search.micro_batch import divisors
from oomdoctor.analysis.search.moments import Room, needs, with_moments
from oomdoctor.records.configuration.config import TrainConfig, is_zero
from oomdoctor.records.job.result import Attempt, Reply
from oomdoctor.records.job.simulation import DevicePrediction, PredictedSize, Prediction, Target

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


def prediction_for(reply: Reply | None, target: str) -> Prediction | None:
    """What a simulation predicts for a target; None if it failed."""
    for prediction in reply.predictions if reply is not None else ():
        if any(predicted.target == target for predicted in prediction.sizes[0].devices):
            return prediction
    return None


def attempts_of_prediction(
    config: TrainConfig,
    prediction: Prediction,
    target: Target,
    simulated: Attempt,
    setting: Setting,
) -> tuple[Attempt, ...]:
    """An attempt for each predicted size on a target. The first has the time of the simulation.

    `simulated` is the attempt of the simulation itself. From `setting` follows what is computed
    rather than simulated: what GRPO needs outside its step.
    """
    attempts = []
    for size in prediction.sizes:
        predicted = next(f for f in size.devices if f.target == target.name)
        step = _attempt(config, size, predicted, target, simulated)
        room = Room(target.usable_bytes, target.total_bytes, target.error)
        attempts.append(with_moments(step, setting, room))
        simulated = replace(simulated, elapsed_s=0.0)
    return tuple(attempts)


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
        reason = needs(peak, target.usable_bytes, "at least " if reserved is None else "")
    borderline = None
    if predicted.borderline and target.error is not None:
        tensors_only = predicted.fits and is_zero(config)
        held = max(allocated, reserved or 0)
        borderline = borderline_note(target.error, held, tensors_only=tensors_only)
    return replace(
        simulated,
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
        borderline=borderline,
    )
