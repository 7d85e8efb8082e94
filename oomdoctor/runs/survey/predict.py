"""What a survey predicts before it measures: every rung simulated for its device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from oomdoctor.analysis.memory.overhead import context_bytes, nccl_bytes
from oomdoctor.analysis.search.ladder import Context, bound_of, fixed_size
from oomdoctor.analysis.simulator.predicted_attempts import (
    attempts_of_prediction,
    prediction_for,
    sizes_to_predict,
)
from oomdoctor.records.config import Rung
from oomdoctor.records.result import ProbeJob
from oomdoctor.records.rung.faults import cannot_run
from oomdoctor.records.simulation import SimulationRequest, Target
from oomdoctor.records.warnings import not_kept
from oomdoctor.runs.events import Listener, SurveyEvent, starting
from oomdoctor.runs.jobs.launch import Stopped
from oomdoctor.runs.jobs.simulators import Simulators
from oomdoctor.runs.survey.state import LadderPrediction, SurveyState
from oomdoctor.system.store.calibration import Learned

_HERE = "this device"


def predict_rungs(
    state: SurveyState,
    rungs: Sequence[Rung],
    learned: Learned | None,
    sizes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    on_event: Listener,
    stop: Callable[[], bool],
) -> LadderPrediction:
    """Simulate the rungs for the survey's device, as far as possible; the rest is left out.

    `learned` are constants of the machine that an earlier survey measured. `sizes` are micro-batch
    sizes by key of a rung, where they are not those that a search may reach. The survey
    warns if what was simulated could not be kept.
    """
    setup, context = state.setup, state.context
    target = _target(state, learned)
    jobs = [
        (rung, _job(rung, state, target, (sizes or {}).get(rung.config.key())))
        for rung in rungs
        if _is_open(rung, context)
    ]
    found = LadderPrediction()
    request = state.request
    simulators = Simulators(
        request.python,
        setup.folder,
        request.rung_limit_s,
        stop,
        fresh=request.fresh,
        variables=setup.variables,
    )
    try:
        with simulators:
            told = starting(on_event, [rung for rung, _ in jobs])
            started = simulators.run([job for _, job in jobs], told)
            for done, ended in enumerate(started, 1):
                rung = jobs[ended.number][0]
                on_event(SurveyEvent("simulated", rung, index=done, total=len(jobs)))
                predictions = ended.reply.predictions if ended.reply is not None else ()
                prediction = prediction_for(predictions, target.name)
                if prediction is not None:
                    config = rung.config
                    device = target.beside_vllm(config)
                    attempts = attempts_of_prediction(config, prediction, device, ended.attempt)
                    found.keep(config.key(), attempts, context.device_type, target.usable_bytes)
    except Stopped:
        pass
    if simulators.memory.failure is not None:
        warning = not_kept(simulators.memory.failure)
        state.warn([warning] if warning not in state.warnings else [])
    return found


def _is_open(rung: Rung, context: Context) -> bool:
    """Whether the rung is valid and its lower bound leaves room."""
    size = fixed_size(rung.config, context) or 1
    if cannot_run(rung.config.with_micro_batch(size), context.compute_capability) is not None:
        return False
    if context.counts is None:
        return True
    return bound_of(rung.config, context.counts, context).size_bytes <= context.usable_bytes


def _target(state: SurveyState, learned: Learned | None) -> Target:
    budget, context = state.budget, state.context
    assert budget is not None
    overhead = 0
    if context.device_type == "cuda":
        known = learned.overhead_bytes if learned is not None else None
        overhead = known if known is not None else context_bytes(context.gpu).likely
        overhead += nccl_bytes(state.request.most_gpus())
    return Target(
        name=_HERE,
        total_bytes=budget.total_bytes,
        usable_bytes=budget.usable_bytes,
        overhead_bytes=overhead,
        gpu=context.gpu,
        calibration=learned.speed if learned is not None else None,
    )


def _job(rung: Rung, state: SurveyState, target: Target, asked: tuple[int, ...] | None) -> ProbeJob:
    inspection, context = state.inspection, state.context
    assert inspection is not None
    sizes = asked or sizes_to_predict(rung.config, fixed_size(rung.config, context))
    return ProbeJob(
        mode="simulate",
        label=f"predict-{rung.label}",
        model=state.spec,
        config=rung.config.with_micro_batch(sizes[0]),
        device_type=context.device_type,
        seed=state.request.seed,
        simulation=SimulationRequest(
            micro_batch_sizes=sizes,
            targets=(target.beside_vllm(rung.config),),
            stacks=inspection.stacks,
            as_cuda=context.device_type == "cuda",
        ),
    )
