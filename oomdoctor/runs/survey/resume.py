"""The tries that an earlier run of the same folder finished, for `--resume`."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.analysis.verdict import fits
from oomdoctor.runs.events import Listener, SurveyEvent
from oomdoctor.runs.survey.state import SurveyState

_SAME_BUDGET = 0.97  # free memory differs a little from hour to hour


def take_finished(state: SurveyState, on_event: Listener) -> None:
    """Take every stored try that still holds for this device and its budget."""

    def note(message: str) -> None:
        on_event(SurveyEvent("note", message=message))

    setup, usable = state.setup, state.context.usable_bytes
    for job, attempt in setup.folder.attempts(note):
        if job.device_id != setup.device_id:
            note(f"{attempt.folder} was measured on another device; trying again")
        elif attempt.outcome == "oom" and (job.budget_bytes or 0) < usable * _SAME_BUDGET:
            note(f"{attempt.folder} ran out of memory with a smaller budget; trying again")
        elif attempt.measurement is not None:
            outcome, reason = fits(attempt.measurement, usable)
            state.keep(replace(attempt, outcome=outcome, reason=reason))
        else:
            state.keep(attempt)
    taken = sum(len(found) for found in state.attempts.values())
    if taken:
        note(f"{taken} finished tries reused")
