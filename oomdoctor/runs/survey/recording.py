"""Records rungs in files, for `probe --snapshot` and `probe --trace`, once they are measured."""

from __future__ import annotations

import re

from oomdoctor.records.facts.warnings import not_recorded
from oomdoctor.records.report import RungFile
from oomdoctor.records.result import FileKind, ProbeResult
from oomdoctor.runs.events import Listener, SurveyEvent
from oomdoctor.runs.survey.jobs import SurveyJobs
from oomdoctor.runs.survey.setup import Ending
from oomdoctor.runs.survey.state import SurveyState

_ENDINGS: dict[FileKind, str] = {"snapshot": "pickle", "trace": "json"}


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
        if attempt is None:
            return
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
