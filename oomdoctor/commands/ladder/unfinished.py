"""The report of a run that has not ended: written while it runs, shown by `show`.

A survey of hours can be looked at before it ends, and one that was killed keeps what it found.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable
from dataclasses import replace

from oomdoctor.analysis.command_line import command_line
from oomdoctor.commands.events import Listener, SurveyEvent
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.system.store.run_folders import RunFolder

# Events after which a report has more to say.
_NEWS = frozenset({"tried", "skipped", "predicted"})
_NOT_YET = "not tried yet"


def keeping(
    folder: RunFolder, report: Callable[[], Report], on_event: Listener, every_s: float
) -> Listener:
    """A listener that passes events on and writes the report so far, at most every `every_s`."""
    written = time.monotonic() - every_s

    def listen(event: SurveyEvent) -> None:
        nonlocal written
        on_event(event)
        if event.kind in _NEWS and time.monotonic() - written >= every_s:
            written = time.monotonic()
            # Only a convenience: a full disk is reported by what has to be written.
            with contextlib.suppress(OomDoctorError):
                folder.write_partial(report())

    return listen


def stored_report(folder: RunFolder) -> Report:
    """The report of a run on disk: the final one, or what is known of a run that has not ended.

    The status is then "running", or "interrupted" if its process was killed.

    Raises:
        OomDoctorError: the run has no results yet, or its files are damaged (exit 5).
    """
    partial = folder.read_partial()
    if partial is None:
        try:
            return folder.read_report()
        except OomDoctorError as error:
            if error.code == "no_report" and not folder.is_running():
                error.hint = _again(folder.read_request(), folder.name)
            raise
    name = shlex.quote(folder.name)
    if folder.is_running():
        return replace(
            partial,
            status="running",
            results=tuple(map(_waiting, partial.results)),
            next_commands=(f"oomdoctor show {name}",),
        )
    return replace(
        partial,
        status="interrupted",
        exit_code=int(ExitCode.INTERRUPTED),
        next_commands=(_again(folder.read_request(), folder.name),),
    )


def _again(request: SurveyRequest, name: str) -> str:
    """How to go on: a probe is resumed, a plan is made again."""
    if request.plan is None:
        return f"oomdoctor probe --resume {shlex.quote(name)}"
    return command_line(request)


def _waiting(result: ProbeResult) -> ProbeResult:
    """A rung whose turn has not come."""
    if result.failure is None or result.failure.code != "not_reached":
        return result
    _, _, bound = (result.reason or "").partition("; ")
    reason = f"{_NOT_YET}; {bound}" if bound else _NOT_YET
    return replace(result, reason=reason, failure=replace(result.failure, message=_NOT_YET))
