"""A probe of the user's own file measures changes after its ladder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from analysis_make import request as survey_request
from tiny_models import tiny_folder

from oomdoctor.commands.events import SurveyEvent
from oomdoctor.commands.probe.run_survey import run_survey
from oomdoctor.errors import ExitCode
from oomdoctor.records.codec import loads
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.records.report.user_training import UserTraining, YourRung
from oomdoctor.system.store import run_folders
from oomdoctor.system.store.run_folders import RunFolder

TRAINING = Path(__file__).parents[1] / "data" / "stacks" / "user_training.json"
SMALLER, EIGHT_BIT = "yours with micro-batch size 1", "yours with 8-bit AdamW"
Ways = Callable[..., SurveyRequest]


@pytest.fixture
def ask(tmp_path: Path, misbehaving_python: str, monkeypatch: pytest.MonkeyPatch) -> Ways:
    """A request for the rung of --from, whose changes end in these ways."""
    model = tiny_folder(tmp_path / "model")
    own = TrainConfig(method="full", micro_batch_size=2, sequence_length=64, effective_batch_size=4)
    training = replace(loads(UserTraining, TRAINING.read_text()), config=own)

    def request(ways: dict[str, str], *others: Rung) -> SurveyRequest:
        monkeypatch.setenv("WAYS", json.dumps(ways))
        return survey_request(
            model=ModelRef(str(model)),
            recipe=Recipe("yours", "", (Rung("yours", own), *others), "command line"),
            device="cpu",
            sequence_length=64,
            effective_batch_size=4,
            rung_limit_s=60.0,
            python=misbehaving_python,
            user_training=training,
            predict=False,
        )

    return request


def survey(
    request: SurveyRequest,
    folder: RunFolder | None = None,
    stop: Callable[[], ExitCode | None] = lambda: None,
    events: list[SurveyEvent] | None = None,
) -> tuple[Report, YourRung, RunFolder]:
    folder = folder or run_folders.create("tiny")
    told = events if events is not None else []
    report = run_survey(request, folder, wait=False, on_event=told.append, stop=stop)
    assert report.yours is not None
    return report, report.yours, folder


def labels(events: list[SurveyEvent], kind: str) -> list[str]:
    return [event.rung.label for event in events if event.kind == kind and event.rung]


def test_changes_that_fit_are_measured_and_are_no_rungs_of_the_ladder(ask: Ways) -> None:
    events: list[SurveyEvent] = []
    report, yours, folder = survey(ask({"*": "oom backward", SMALLER: "fits"}), events=events)
    assert [row.label for row in report.results] == ["yours"]
    assert (report.status, report.exit_code) == ("no", ExitCode.NO)
    assert yours.aim == "fits"
    (change,) = yours.changes
    assert (change.change, change.evidence) == ("micro-batch size 1", "measured")
    assert (change.micro_batch_size, change.peak_device_bytes) == (1, 1000)
    assert change.lines
    tried = labels(events, "tried")
    assert tried[:1] == ["yours"]
    assert SMALLER in tried
    assert yours.tried == tuple(label.removeprefix("yours with ") for label in tried[1:])
    assert len(tried) == 1 + 3  # not every change that there is
    assert folder.read_report() == report


def test_what_does_not_run_here_does_not_count_as_measured(ask: Ways) -> None:
    ways = {"yours": "oom backward", SMALLER: "fits", EIGHT_BIT: "fits", "*": "unsupported"}
    _, yours, _ = survey(ask(ways))
    assert [change.change for change in yours.changes] == ["micro-batch size 1", "8-bit AdamW"]
    assert yours.tried == ("micro-batch size 1", "8-bit AdamW")


def test_nothing_that_fits_is_said_with_what_was_measured(ask: Ways) -> None:
    _, yours, _ = survey(ask({"*": "oom backward"}))
    assert (yours.aim, yours.changes, len(yours.tried)) == ("fits", (), 3)
    assert yours.reason == f"not even with {', or '.join(yours.tried)}"


def test_only_what_is_faster_is_shown_for_a_rung_that_fits(ask: Ways) -> None:
    report, yours, _ = survey(ask({"*": "fits"}))
    assert report.exit_code == ExitCode.OK
    assert yours.aim == "faster"
    (change,) = yours.changes  # the worker's micro-step takes as long for every size
    assert change.change == "micro-batch size 4"
    assert change.speedup is not None and change.speedup > 1.2
    assert len(yours.tried) > 1


@pytest.mark.parametrize("outcome", ["exception", "segfault"])
def test_a_rung_that_fails_is_not_changed(ask: Ways, outcome: str) -> None:
    events: list[SurveyEvent] = []
    _, yours, _ = survey(ask({"yours": outcome}), events=events)
    assert (yours.aim, yours.tried) == (None, ())
    assert yours.reason
    assert set(labels(events, "tried")) == {"yours"}


def test_a_signal_keeps_the_change_that_is_known_and_resume_goes_on(ask: Ways) -> None:
    events: list[SurveyEvent] = []

    def stop() -> ExitCode | None:
        return ExitCode.INTERRUPTED if SMALLER in labels(events, "tried") else None

    ways = {"yours": "oom backward", SMALLER: "fits", EIGHT_BIT: "fits", "*": "unsupported"}
    report, yours, folder = survey(ask(ways), stop=stop, events=events)
    assert (report.status, report.exit_code) == ("interrupted", ExitCode.INTERRUPTED)
    assert [change.change for change in yours.changes] == ["micro-batch size 1"]
    assert EIGHT_BIT not in labels(events, "trying")
    again: list[SurveyEvent] = []
    report, yours, _ = survey(folder.read_request(), folder, events=again)
    assert [change.change for change in yours.changes] == ["micro-batch size 1", "8-bit AdamW"]
    assert labels(again, "tried")[-1] == EIGHT_BIT
    assert not {"yours", SMALLER} & set(labels(again, "tried"))
    assert report.exit_code == ExitCode.NO


def test_a_signal_during_the_ladder_leaves_changes_out(ask: Ways) -> None:
    events: list[SurveyEvent] = []

    def stop() -> ExitCode | None:
        return ExitCode.TERMINATED if labels(events, "tried") else None

    _, yours, _ = survey(ask({"*": "oom backward"}), stop=stop, events=events)
    assert (yours.aim, yours.reason) == (None, "no change of it was measured")
