"""What the tests of the command line share: running it, in this process or as a child."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from calibration_make import times
from example_diagnoses import EXPLAINED
from example_plans import PLANS
from example_reports import REPORTS
from example_runs import fits
from failed_step import TRACE

from oomdoctor.cli.main import run
from oomdoctor.commands.check.running import Ran
from oomdoctor.commands.events import SurveyEvent
from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.system.catalogue import find_gpu

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command line ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command line in this process, where things can be replaced."""

    def call(*arguments: str) -> Ended:
        code = run(list(arguments))
        out, err = capsys.readouterr()
        return Ended(int(code), out, err)

    return call


@pytest.fixture
def child() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command line as a process of its own, its streams in pipes."""

    def call(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "oomdoctor", *arguments],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            **options,
        )

    return call


@pytest.fixture
def golden() -> Callable[[str], Report]:
    """An example report as read from its JSON: "gpu", "cpu", "plan", "explain-gpu" and others."""
    return lambda name: loads(Report, dumps({**REPORTS, **PLANS, **EXPLAINED}[name]()))


@dataclass(slots=True)
class FakeSurvey:
    """Stands in for `run_survey`: remembers what it was asked and answers what it was told."""

    answer: Report | BaseException
    request: SurveyRequest | None = None
    wait: bool | None = None
    act: Callable[..., None] | None = None

    def __call__(self, request: SurveyRequest, folder: Any, *, wait: bool, **hooks: Any) -> Report:
        self.request, self.wait = request, wait
        folder.write_request(request)
        if self.act is not None:
            self.act(**hooks)
        if isinstance(self.answer, BaseException):
            raise self.answer
        folder.write_report(self.answer)
        return self.answer


@pytest.fixture
def survey(monkeypatch: pytest.MonkeyPatch, golden: Callable[[str], Report]) -> FakeSurvey:
    """Replaces the survey; it answers with the stored CPU report unless the test says otherwise.

    The machine has no GPU then, wherever the test runs. `probe --calibrate` measures nothing.
    """
    taken = times(find_gpu("NVIDIA L4"), {"matmul": 1.5}, clock="cpu")
    monkeypatch.setattr("oomdoctor.commands.probe.calibrate._measured", lambda *_: taken)
    monkeypatch.setattr("oomdoctor.cli.probe_request.list_gpus", lambda: ())
    fake = FakeSurvey(golden("cpu"))
    monkeypatch.setattr("oomdoctor.commands.probe.run_survey.run_survey", fake)
    return fake


@dataclass(slots=True)
class FakePlan:
    """Stands in for `run_plan`: remembers what it was asked, tells events, answers as told."""

    answer: Report | BaseException
    request: SurveyRequest | None = None
    events: tuple[SurveyEvent, ...] = ()

    def __call__(self, request: SurveyRequest, folder: Any, *, on_event: Any, stop: Any) -> Report:
        self.request = request
        folder.write_request(request)
        for event in self.events:
            on_event(event)
        if isinstance(self.answer, BaseException):
            raise self.answer
        folder.write_report(self.answer)
        return self.answer


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, golden: Callable[[str], Report]) -> FakePlan:
    """Replaces the plan; it answers with the stored one unless the test says otherwise.

    The machine has no GPU then, wherever the test runs.
    """
    monkeypatch.setattr("oomdoctor.cli.plan_request.list_gpus", lambda: ())
    fake = FakePlan(golden("plan"))
    monkeypatch.setattr("oomdoctor.commands.plan.run_plan.run_plan", fake)
    return fake


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, golden: Callable[[str], Report]) -> None:
    """Replaces the run of a watched command; any program and interpreter will do."""
    requests = "oomdoctor.cli.run_request"
    monkeypatch.setattr(f"{requests}.found_command", lambda word, path=None: Path(word))
    monkeypatch.setattr(f"{requests}.chosen_python", lambda given, command: Path("python"))
    monkeypatch.setattr("oomdoctor.commands.run.run_watched.run_watched", lambda *_: golden("cpu"))
    checks = "oomdoctor.commands.check.run_check"
    monkeypatch.setattr(
        f"{checks}.run_all", lambda checks, *_: [Ran(fits(), 0, None, 9.5)] * len(checks)
    )
    monkeypatch.setattr(f"{checks}._checkout", lambda folder, revision: nullcontext(folder))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A file with the output of a training that ran out of memory."""
    file = tmp_path / "trace.txt"
    file.write_text(TRACE)
    return file
