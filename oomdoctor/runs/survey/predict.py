"""What a survey is told before it measures: every rung simulated for the device at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from oomdoctor.analysis.memory.overhead import context_bytes
from oomdoctor.analysis.search.from_prediction import RungPrediction
from oomdoctor.analysis.search.ladder import Context, bound_of, fixed_size
from oomdoctor.analysis.simulator.predicted_attempts import (
    attempts_of_prediction,
    prediction_for,
    sizes_to_predict,
)
from oomdoctor.analysis.speed.throughput import tokens_per_s
from oomdoctor.records.config import Rung, config_faults
from oomdoctor.records.measurement import Measurement
from oomdoctor.records.model import ModelSpec
from oomdoctor.records.report import Budget, SurveyRequest
from oomdoctor.records.result import (
    Attempt,
    Inspection,
    PredictedPeak,
    ProbeJob,
    ProbeResult,
)
from oomdoctor.records.simulation import SimulationRequest, Target
from oomdoctor.runs.events import Listener, SurveyEvent
from oomdoctor.runs.jobs.launch import Stopped
from oomdoctor.runs.jobs.simulators import Simulators
from oomdoctor.system.store.calibration import Learned
from oomdoctor.system.store.run_folders import RunFolder

_HERE = "this device"


@dataclass(frozen=True, slots=True)
class LadderPrediction:
    """Predictions by `config.key()` of a rung; empty where nothing could be predicted."""

    predictions: dict[str, RungPrediction] = field(default_factory=dict)
    peaks: dict[tuple[str, int], PredictedPeak] = field(default_factory=dict)  # by key and size


def predict_ladder(
    request: SurveyRequest,
    folder: RunFolder,
    spec: ModelSpec,
    inspection: Inspection,
    budget: Budget,
    context: Context,
    rungs: tuple[Rung, ...],
    learned: Learned | None,
    *,
    on_event: Listener,
    stop: Callable[[], bool],
) -> LadderPrediction:
    """Simulate the rungs for the device of a survey; a rung that cannot be is left out."""
    target = _target(budget, context, learned)
    jobs = [
        (rung, _job(rung, request, spec, inspection, context, target))
        for rung in rungs
        if _is_open(rung, context)
    ]
    found = LadderPrediction()
    simulators = Simulators(request.python, folder, request.rung_limit_s, stop)
    try:
        with simulators:
            for ended in simulators.run(
                [job for _, job in jobs],
                lambda number: on_event(
                    SurveyEvent("simulating", jobs[number][0], total=len(jobs))
                ),
            ):
                predictions = ended.reply.predictions if ended.reply is not None else ()
                prediction = prediction_for(predictions, target.name)
                if prediction is not None:
                    config = jobs[ended.number][0].config
                    attempts = attempts_of_prediction(
                        config, prediction, target, ended.attempt.elapsed_s, ended.folder.name
                    )
                    _keep(found, config.key(), attempts, context)
    except Stopped:
        pass
    return found


def with_prediction(result: ProbeResult, rung: Rung, predicted: LadderPrediction) -> ProbeResult:
    """The row with what was predicted of it: at its size, or at the smallest where it has none."""
    key = rung.config.key()
    size = result.micro_batch_size
    if size is None:
        size = min((known for other, known in predicted.peaks if other == key), default=1)
    return replace(result, predicted=predicted.peaks.get((key, size)))


def _is_open(rung: Rung, context: Context) -> bool:
    """Whether the formulas leave it open if the rung fits, and it is no contradiction."""
    size = fixed_size(rung.config, context) or 1
    if config_faults(rung.config.with_micro_batch(size)):
        return False
    if context.counts is None:
        return True
    return bound_of(rung.config, context.counts, context).size_bytes <= context.usable_bytes


def _target(budget: Budget, context: Context, learned: Learned | None) -> Target:
    overhead = 0
    if context.device_type == "cuda":
        known = learned.overhead_bytes if learned is not None else None
        overhead = known if known is not None else context_bytes(context.gpu).likely
    return Target(
        name=_HERE,
        total_bytes=budget.total_bytes,
        usable_bytes=budget.usable_bytes,
        overhead_bytes=overhead,
        gpu=context.gpu,
        calibration=learned.speed if learned is not None else None,
    )


def _job(
    rung: Rung,
    request: SurveyRequest,
    spec: ModelSpec,
    inspection: Inspection,
    context: Context,
    target: Target,
) -> ProbeJob:
    sizes = sizes_to_predict(rung.config, fixed_size(rung.config, context))
    return ProbeJob(
        mode="simulate",
        label=f"predict-{rung.label}",
        model=spec,
        config=rung.config.with_micro_batch(sizes[0]),
        device_type=context.device_type,
        seed=request.seed,
        simulation=SimulationRequest(
            micro_batch_sizes=sizes,
            targets=(target,),
            stacks=inspection.stacks,
            as_cuda=context.device_type == "cuda",
        ),
    )


def _keep(
    found: LadderPrediction, key: str, attempts: tuple[Attempt, ...], context: Context
) -> None:
    peaks: dict[int, int] = {}
    rates: dict[int, float] = {}
    for attempt in attempts:
        size, predicted = attempt.config.micro_batch_size, attempt.measurement
        if not isinstance(size, int) or predicted is None:
            continue
        told = _as_measured(predicted, context)
        peaks[size] = told.deciding_peak_bytes()
        found.peaks[key, size] = PredictedPeak(
            told.peak_allocated_bytes, told.peak_reserved_bytes, told.peak_device_bytes
        )
        if predicted.timing is not None:
            rates[size] = tokens_per_s(predicted.timing, attempt.config)
    found.predictions[key] = RungPrediction(peaks, rates)


def _as_measured(predicted: Measurement, context: Context) -> Measurement:
    """On the CPU there is no caching allocator: tensor bytes decide."""
    if context.device_type == "cuda":
        return predicted
    return replace(predicted, peak_reserved_bytes=None, peak_device_bytes=None)
