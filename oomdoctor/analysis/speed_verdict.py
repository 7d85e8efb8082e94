"""The speed of a row: the figures, how far they can be trusted, and what the reader has to know.

Did the times settle, and were other processes in the way? A speed that did not settle is shown, but
rungs are not ranked by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict, cast

from oomdoctor.analysis.search.ladder import Context
from oomdoctor.analysis.speed.limits import PeakShares, peak_shares
from oomdoctor.analysis.speed.throughput import (
    CountedModel,
    lacks_tf32,
    mfu,
    peak_flops,
    step_seconds,
    tokens_per_s,
    tokens_per_s_spread,
)
from oomdoctor.analysis.speed.training_time import training_time
from oomdoctor.records.configuration.adapters import compute_dtype
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.dataset import TrainingTime
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.measurement import Load, Measurement, Timing
from oomdoctor.records.job.result import Attempt, ProbeResult, SpeedState
from oomdoctor.records.report.report import SurveyRequest, Warn
from oomdoctor.records.report.warnings import foreign_load, warning
from oomdoctor.units import format_percent

# Rungs whose speeds differ by less than this are alike for most purposes. The spread of a shared
# machine that is not overloaded stays below it.
MOST_SPREAD = 0.10
_FEWEST_STEPS = 3  # fewer do not show how much they vary
_DISTURBING = 0.10  # of the threads that the worker runs, or of the time of a GPU


class Figures(TypedDict):
    """The figures of a row that come from its times; None where there are none."""

    tokens_per_s: float | None
    tokens_per_s_spread: float | None
    samples_per_s: float | None
    micro_step_s: float | None
    optimizer_step_s: float | None
    tokens_time_s: float | None
    mfu: float | None


_NO_SPEED = cast(Figures, dict.fromkeys(Figures.__annotations__))


@dataclass(frozen=True, slots=True)
class Speed:
    """The figures of a row, how far they can be trusted, and notes about that."""

    figures: Figures
    state: SpeedState | None
    notes: tuple[str, ...]
    training_time: TrainingTime | None = None


def speed_of(
    measured: Measurement | None, config: TrainConfig, context: Context, request: SurveyRequest
) -> Speed:
    """The speed of a rung that fits, at its micro-batch size; nothing for other rungs."""
    if measured is None:
        return Speed(_NO_SPEED, None, ())
    timing, state = measured.timing, speed_state(measured, config, context)
    believable = None if state == "not_believable" else timing
    own = None if context.data is None else training_time(context.data, config, believable)
    if timing is None:
        return Speed(_NO_SPEED, None, (), own)
    figures: Figures = {
        **(_NO_SPEED if believable is None else _rates(timing, measured, config, context, request)),
        "micro_step_s": timing.micro_step_s,
        "optimizer_step_s": timing.optimizer_step_s,
    }
    notes = _notes(timing, measured, config, context, state) + tf32_notes(config, context.gpu)
    return Speed(figures, state, notes, own)


def speed_state(
    measured: Measurement | None, config: TrainConfig, context: Context
) -> SpeedState | None:
    """How far the times of a rung can be trusted, by what the card can do and how they varied."""
    timing = measured.timing if measured is not None else None
    if timing is None or measured is None:
        return None
    if timing.stopped_by == "estimated":
        return "estimated"
    shares = _shares(timing, measured, config, context)
    if context.emulated or (shares is not None and not shares.believable()):
        return "not_believable"
    return "settled" if settled(timing, config) else "not_settled"


def _shares(
    timing: Timing, measured: Measurement, config: TrainConfig, context: Context
) -> PeakShares | None:
    """The shares of the card's peaks that the times imply; None if the card is unknown."""
    model = _model(measured, context)
    if context.gpu is None or model is None:
        return None
    return peak_shares(timing, config, context.gpu, model)


def _model(measured: Measurement, context: Context) -> CountedModel | None:
    trainable, task = measured.trainable_parameters, context.task
    if context.counts is None:
        return None
    return CountedModel(context.counts, trainable, context.model_config, task)


def may_teach(attempt: Attempt, context: Context) -> bool:
    """Whether the times of an attempt may correct the estimates of other rungs."""
    measured = attempt.measurement
    if measured is None or measured.timing is None or disturbed(measured.timing.load):
        return False
    return speed_state(measured, attempt.config, context) == "settled"


def speed_warnings(results: Iterable[ProbeResult], context: Context) -> list[Warn]:
    """Warnings about the times of a survey: others used the device, or nobody can be that fast."""
    if context.emulated:
        return [warning("emulated_device")]
    fitting = [result for result in results if result.outcome == "fits"]
    shares = [
        share.highest()
        for result in fitting
        if result.speed_state == "not_believable"
        and (measured := result.measurement) is not None
        and measured.timing is not None
        and (share := _shares(measured.timing, measured, result.config, context))
    ]
    warns = []
    if shares:
        highest, what = max(shares)
        most = format_percent(highest)
        warns.append(warning("time_not_believable", rungs=len(shares), share=most, what=what))
    if loads := disturbing(fitting):
        warns.append(foreign_load(loads))
    return warns


def _rates(
    timing: Timing,
    measured: Measurement,
    config: TrainConfig,
    context: Context,
    request: SurveyRequest,
) -> Figures:
    rate = tokens_per_s(timing, config, context.task)
    peak = peak_flops(config, context.gpu)
    utilization = mfu(rate, config, _model(measured, context), peak)
    return {
        **_NO_SPEED,
        "tokens_per_s": rate,
        "tokens_per_s_spread": tokens_per_s_spread(timing, config),
        "samples_per_s": config.effective_batch_size / step_seconds(timing, config),
        "tokens_time_s": request.tokens / rate,
        # PaLM counts scores that a causal kernel skips: very long sequences may seem to exceed 1.
        "mfu": utilization if utilization is None or utilization <= 1 else None,
    }


def _notes(
    timing: Timing,
    measured: Measurement,
    config: TrainConfig,
    context: Context,
    state: SpeedState | None,
) -> tuple[str, ...]:
    """What a reader has to know about the times of a rung that fits."""
    if state == "estimated":
        return ()
    if context.emulated:
        return ("no speed: the GPU is emulated",)
    if state == "not_believable":
        shares = _shares(timing, measured, config, context)
        share, name = shares.highest() if shares is not None else (0.0, "")
        return (f"its times are not believable: {format_percent(share)} of the {name}",)
    return timing_notes(timing, config)


def tf32_notes(config: TrainConfig, gpu: GpuFacts | None) -> tuple[str, ...]:
    """Why `tf32` does not make a rung faster, if it asks for it.

    Adapters without autocast are multiplied in their own type, float32, whatever the weights have.
    """
    if not config.tf32:
        return ()
    multiplied = compute_dtype(config)
    has_others = config.method != "full" and config.autocast_dtype == "none"
    if multiplied != "float32" and not has_others:
        return (f"tf32 has no effect: products are in {multiplied}",)
    if gpu is not None and lacks_tf32(gpu):
        return ("tf32 has no effect: the card has no TF32, so products are in float32",)
    return ()


def settled(timing: Timing, config: TrainConfig) -> bool:
    """Whether the times varied little enough to rank by them; estimates do not vary."""
    if timing.stopped_by in ("spread", "estimated"):
        return True
    spread = tokens_per_s_spread(timing, config)
    return timing.timed_steps >= _FEWEST_STEPS and spread is not None and spread <= MOST_SPREAD


def disturbed(load: Load | None) -> bool:
    """Whether other processes used what the timed steps needed.

    Other processes do no harm on cores that the worker's threads leave free.
    """
    if load is None:
        return False
    if load.foreign_gpu is not None and load.foreign_gpu > _DISTURBING:
        return True
    harmless = load.cpus - load.threads + _DISTURBING * load.threads
    return load.foreign_cpus is not None and load.foreign_cpus > harmless


def timing_notes(timing: Timing, config: TrainConfig) -> tuple[str, ...]:
    """What a reader has to know about the times of a rung."""
    notes = []
    if not settled(timing, config):
        steps = "1 timed step" if timing.timed_steps == 1 else f"{timing.timed_steps} timed steps"
        spread = tokens_per_s_spread(timing, config)
        varied = "" if spread is None else f"{steps} varied by {format_percent(spread, 1)}"
        notes.append(f"speed not settled: {varied or f'only {steps}'}")
    if disturbed(timing.load):
        notes.append("other processes used the device while it was timed")
    return tuple(notes)


def disturbing(results: Iterable[ProbeResult]) -> list[Load]:
    """What other processes took from the rungs that fit, where they were in the way."""
    timings = [r.measurement.timing for r in results if r.measurement and r.outcome == "fits"]
    loads = [timing.load for timing in timings if timing is not None and timing.load is not None]
    return [load for load in loads if disturbed(load)]
