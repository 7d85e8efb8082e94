"""Measure the rungs of a survey in turn, until all are settled or an end is requested."""

from __future__ import annotations

from oomdoctor.analysis.search.ladder import NextTry, SkipRung
from oomdoctor.analysis.speed_verdict import may_teach
from oomdoctor.records.config import Rung
from oomdoctor.records.facts.capability import cannot_run
from oomdoctor.records.facts.warnings import MEMORY_NOT_FREE
from oomdoctor.records.result import Attempt, refused
from oomdoctor.runs.devices import device
from oomdoctor.runs.events import EventKind, Listener, SurveyEvent
from oomdoctor.runs.survey.jobs import SurveyJobs
from oomdoctor.runs.survey.knowledge import Knowledge
from oomdoctor.runs.survey.setup import Ending
from oomdoctor.runs.survey.state import SurveyState


def walk(
    state: SurveyState,
    jobs: SurveyJobs,
    knowledge: Knowledge | None,
    on_event: Listener,
    ending: Ending,
) -> None:
    """Take one step after the other. `knowledge` corrects the predictions, where there are any."""
    while not ending.is_over():
        step = state.next_step()
        if step is None:
            return
        if isinstance(step, SkipRung):
            state.skip(step)
            _tell(state, on_event, "skipped", step.rung, message=step.reason)
            continue
        attempt = _try(state, jobs, step, on_event)
        if attempt is None:
            return
        state.keep(attempt)
        if knowledge is not None:
            known = state.context.predictions
            trusted = may_teach(attempt, state.context)
            state.correct_predictions(knowledge.learn(step.rung, attempt, known, trusted=trusted))
        _tell(state, on_event, "tried", step.rung, step.micro_batch_size, attempt=attempt)
        told = any(warning.code == MEMORY_NOT_FREE for warning in state.warnings)
        if not told and state.request.emulate is None:
            state.warn(device.not_given_back(state.setup.device))


def _try(state: SurveyState, jobs: SurveyJobs, step: NextTry, on_event: Listener) -> Attempt | None:
    """Try one micro-batch size of one rung in its own process; None when told to stop."""
    rung, size = step.rung, step.micro_batch_size
    config = rung.config.with_micro_batch(size)
    _tell(state, on_event, "trying", rung, size, message=step.why)
    reason = cannot_run(config, state.context.compute_capability)
    if reason is not None:
        return refused(config, reason)
    return jobs.measure(
        rung.label,
        config,
        state.context.usable_bytes,
        on_phase=lambda phase: _tell(state, on_event, "phase", rung, size, phase=phase),
    )


def _tell(
    state: SurveyState,
    on_event: Listener,
    kind: EventKind,
    rung: Rung,
    size: int | None = None,
    *,
    phase: str | None = None,
    attempt: Attempt | None = None,
    message: str | None = None,
) -> None:
    rungs = state.all_rungs()
    index, total = 1 + rungs.index(rung), len(rungs)
    left = sum(one is not rung for one in state.still_to_try())
    on_event(SurveyEvent(kind, rung, size, phase, attempt, index, total, message, left=left))
