"""Measure the rungs of a survey in turn, until all are settled or an end is requested.

Rungs are recorded in files, for `probe --snapshot` and `probe --trace`, once they are measured.
"""

from __future__ import annotations

import re

from oomdoctor.analysis.search.ladder import NextTry, SkipRung
from oomdoctor.analysis.speed_verdict import may_teach
from oomdoctor.records.config import Rung
from oomdoctor.records.report import RungFile
from oomdoctor.records.result import Attempt, FileKind, ProbeResult, refused
from oomdoctor.records.rung.faults import cannot_run
from oomdoctor.records.warnings import MEMORY_NOT_FREE, not_recorded
from oomdoctor.runs.devices import device
from oomdoctor.runs.events import EventKind, Listener, SurveyEvent
from oomdoctor.runs.survey.jobs import SurveyJobs
from oomdoctor.runs.survey.knowledge import Knowledge
from oomdoctor.runs.survey.state import Ending, SurveyState

_ENDINGS: dict[FileKind, str] = {"snapshot": "pickle", "trace": "json"}


def walk(
    state: SurveyState,
    jobs: SurveyJobs,
    knowledge: Knowledge | None,
    on_event: Listener,
    ending: Ending,
) -> None:
    """Take one step after the other. `knowledge` corrects the predictions, where there are any.

    Raises:
        Stopped: told to stop.
    """
    while not ending.is_over():
        step = state.next_step()
        if step is None:
            return
        if isinstance(step, SkipRung):
            state.skip(step)
            _tell(state, on_event, "skipped", step.rung, message=step.reason)
            continue
        attempt = _try(state, jobs, step, on_event)
        state.keep(attempt)
        if knowledge is not None:
            known = state.context.predictions
            trusted = may_teach(attempt, state.context)
            state.correct_predictions(knowledge.learn(step.rung, attempt, known, trusted=trusted))
        _tell(state, on_event, "tried", step.rung, step.micro_batch_size, attempt=attempt)
        told = any(warning.code == MEMORY_NOT_FREE for warning in state.warnings)
        if not told and state.request.emulate is None:
            state.warn(device.not_given_back(state.setup.device))


def _try(state: SurveyState, jobs: SurveyJobs, step: NextTry, on_event: Listener) -> Attempt:
    """Try one micro-batch size of one rung in its own process."""
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


def record_rungs(state: SurveyState, jobs: SurveyJobs, on_event: Listener, ending: Ending) -> None:
    """Record the rungs that the request names, each in a separate process."""
    asked = state.setup.request
    kinds: tuple[tuple[FileKind, str | None], ...] = (
        ("snapshot", asked.snapshot),
        ("trace", asked.trace),
    )
    for kind, label in kinds:
        if label is None or ending.is_over():
            continue
        # The label may have changed with the 16-bit type of the device.
        place = [rung.label for rung in asked.recipe.rungs].index(label)
        rung, row = state.rungs[place], state.results()[place]
        size = _size_to_record(row)
        if size is None:
            state.warn([not_recorded(kind, rung.label, row.reason or "it did not run")])
            continue
        message = f"recording the {kind} of {rung.label} at micro-batch {size}"
        on_event(SurveyEvent("waiting", message=message))
        name = re.sub(r"[^\w.+-]+", "-", rung.label)
        file = state.setup.folder.path / f"{kind}-{name}.{_ENDINGS[kind]}"
        config = rung.config.with_micro_batch(size)
        attempt = jobs.record(rung.label, config, state.context.usable_bytes, kind, str(file))
        if attempt.outcome not in ("fits", "oom") or not file.is_file():
            file.unlink(missing_ok=True)  # what a step that failed has left says nothing
            state.warn([not_recorded(kind, rung.label, attempt.reason or attempt.outcome)])
            continue
        state.files += (RungFile(kind, rung.label, size, str(file)),)


def _size_to_record(row: ProbeResult) -> int | None:
    """The micro-batch size of the row; if none fits, the smallest that ran out of memory."""
    if row.outcome == "fits":
        return row.micro_batch_size
    failed = [one.micro_batch_size for one in row.tries if one.outcome == "oom"]
    return min(failed, default=None)
