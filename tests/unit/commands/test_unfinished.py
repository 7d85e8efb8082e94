"""What `show` says of a run that is still going on, or that was killed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from example_reports import REPORTS

from oomdoctor.analysis.command_line import command_line
from oomdoctor.commands.events import SurveyEvent
from oomdoctor.commands.ladder.unfinished import keeping, stored_report
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.job.result import Failure
from oomdoctor.records.report.plan import PlanRequest
from oomdoctor.records.report.report import Report
from oomdoctor.system.store import run_folders
from oomdoctor.system.store.run_folders import RunFolder
from oomdoctor.system.store.run_list import stored_runs

_HOLD = """
import sys, time
from pathlib import Path
from oomdoctor.system.store.run_folders import RunFolder
with RunFolder(Path(sys.argv[1])).running():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def report() -> Report:
    """A report of which the last rung has not been tried."""
    found = REPORTS["cpu"]()
    waiting = replace(
        found.results[-1],
        outcome="skipped",
        failure=Failure("not_reached", "the survey ended before this configuration was tried"),
        reason="not reached; lower bound 1.00 GiB",
    )
    return replace(found, results=(*found.results[:-1], waiting))


@pytest.fixture
def folder(report: Report) -> RunFolder:
    made = run_folders.create("m")
    assert report.request is not None
    made.write_request(report.request)
    return made


def test_while_it_runs_the_rungs_so_far_are_shown(folder, report):
    folder.write_partial(report)
    with folder.running():
        shown = stored_report(folder)
        (row,) = stored_runs()
    assert shown.status == row.status == "running"
    assert shown.results[-1].reason == "not tried yet; lower bound 1.00 GiB"
    assert shown.results[:-1] == report.results[:-1]
    assert shown.next_commands == (f"oomdoctor show {folder.name}",)
    assert row.rungs == len(report.results)


def test_a_killed_run_keeps_what_it_found(folder, report):
    folder.write_partial(report)
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder.path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline()
    assert stored_report(folder).status == "running"
    process.kill()
    process.wait()
    process.stdout.close()
    shown = stored_report(folder)
    assert (shown.status, shown.exit_code) == ("interrupted", ExitCode.INTERRUPTED)
    assert shown.next_commands == (f"oomdoctor probe --resume {folder.name}",)
    assert next(stored_runs()).status == "interrupted"


def test_the_final_report_takes_its_place(folder, report):
    folder.write_partial(report)
    folder.write_report(REPORTS["cpu"]())
    assert stored_report(folder) == REPORTS["cpu"]()
    folder.write_partial(report)  # it is continued, and killed again
    assert stored_report(folder).status == "interrupted"


def test_without_results_it_says_whether_it_runs(folder):
    with folder.running(), pytest.raises(OomDoctorError, match="still running and has no results"):
        stored_report(folder)
    with pytest.raises(OomDoctorError, match="killed before it had results") as caught:
        stored_report(folder)
    assert caught.value.hint == f"oomdoctor probe --resume {folder.name}"


def test_a_killed_plan_is_made_again(folder, report):
    request = replace(report.request, plan=PlanRequest(("T4",)))
    folder.write_request(request)
    with pytest.raises(OomDoctorError) as caught:
        stored_report(folder)
    again = command_line(request)
    assert caught.value.hint == again
    assert again.startswith(f"oomdoctor plan {request.model.name} --gpu T4 ")
    folder.write_partial(report)
    assert stored_report(folder).next_commands == (again,)


def test_each_result_is_kept_but_not_too_often(folder, report):
    told: list[SurveyEvent] = []
    made = []

    def so_far() -> Report:
        made.append(1)
        return report

    listen = keeping(folder, so_far, told.append, every_s=0.0)
    for kind in ("inspecting", "trying", "tried", "skipped"):
        listen(SurveyEvent(kind))
    assert len(told) == 4
    assert len(made) == 2
    assert folder.read_partial() == report
    listen = keeping(folder, so_far, told.append, every_s=3600.0)
    for _ in range(3):
        listen(SurveyEvent("predicted"))
    assert len(made) == 3


def test_a_full_disk_does_not_end_the_run(folder, report):
    (folder.path / "partial.json").mkdir()
    keeping(folder, lambda: report, lambda _: None, every_s=0.0)(SurveyEvent("tried"))
