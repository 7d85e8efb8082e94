"""A whole plan of a tiny model, with real simulations; and what becomes of those that fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from analysis_make import request as survey_request
from tiny_models import CONFIGS

from oomdoctor.errors import ExitCode
from oomdoctor.records.config import Recipe, Rung, TrainConfig
from oomdoctor.records.model import ModelRef
from oomdoctor.records.plan import PlanRequest, Sweep
from oomdoctor.records.report import Report, SurveyRequest
from oomdoctor.runs.events import SurveyEvent
from oomdoctor.runs.plan.run import run_plan
from oomdoctor.system.store import run_folders

pytestmark = pytest.mark.usefixtures("one_simulator")
RUNGS = (
    Rung("full", TrainConfig(sequence_length=32, effective_batch_size=4)),
    Rung("contradiction", TrainConfig(method="qlora", sequence_length=32, effective_batch_size=4)),
)


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., SurveyRequest]:
    """A request for rungs of a tiny model on a card; `broken` has a worker that fails by label."""
    model = tmp_path / "model"
    model.mkdir()
    _, architecture, config = CONFIGS["dense"]
    (model / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    broken = tmp_path / "python"
    worker = Path(__file__).parents[1] / "examples" / "misbehaving_worker.py"
    broken.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{worker}"\n')
    broken.chmod(0o755)

    def request(plan: PlanRequest, *rungs: Rung, breaks: bool = False) -> SurveyRequest:
        return survey_request(
            model=ModelRef(str(model)),
            recipe=Recipe("tiny", "", rungs or RUNGS, "command line"),
            device="cuda",
            sequence_length=32,
            effective_batch_size=4,
            rung_limit_s=60.0,
            python=str(broken) if breaks else sys.executable,
            plan=plan,
        )

    return request


def plan(
    request: SurveyRequest, stop: Callable[[], ExitCode | None] = lambda: None
) -> tuple[Report, list[SurveyEvent]]:
    events: list[SurveyEvent] = []
    folder = run_folders.create("tiny")
    report = run_plan(request, folder, on_event=events.append, stop=stop)
    assert folder.read_report() == report
    return report, events


@pytest.mark.slow
def test_a_plan_for_one_card_is_a_survey_without_the_card(
    ask: Callable[..., SurveyRequest],
) -> None:
    report, events = plan(ask(PlanRequest(("RTX 4090",))))
    full, contradiction = report.results
    assert (report.command, report.status, report.exit_code) == ("plan", "ok", 0)
    assert (full.outcome, full.evidence) == ("fits", "predicted")
    assert full.peak_device_bytes == (full.peak_reserved_bytes or 0) + (
        report.cards[0].context.likely
    )
    assert full.tokens_per_s is not None
    assert {attempt.micro_batch_size for attempt in full.tries} == {1, 2, 4}
    assert contradiction.outcome == "unsupported"
    assert "quantization" in (contradiction.reason or "")
    assert report.machine is not None and report.budget is not None
    assert report.machine.gpu_name == "NVIDIA GeForce RTX 4090"
    assert report.budget.usable_bytes == report.cards[0].usable_bytes
    assert report.ranking == (full.key,)
    assert [event.kind for event in events] == ["inspecting", "simulating", "predicted", "done"]


@pytest.mark.slow
def test_several_cards_have_a_row_each_and_no_speed_without_a_card(
    ask: Callable[..., SurveyRequest],
) -> None:
    report, _ = plan(ask(PlanRequest(("L4", "1MiB", "1GiB")), RUNGS[0]))
    assert report.results == ()
    small, sized, card = report.cards
    assert small.picks.full is not None and not small.picks.full.fits
    assert small.picks.full.missed_by_bytes
    assert sized.picks.full is not None and sized.picks.full.fits
    assert sized.picks.full.tokens_per_s is None
    assert card.picks.full is not None and card.picks.full.tokens_per_s
    assert card.picks.lora is None
    assert "no_card" in [warning.code for warning in report.warnings]
    assert report.exit_code == 0


@pytest.mark.slow
def test_a_sweep_grows(ask: Callable[..., SurveyRequest]) -> None:
    sweep = Sweep("sequence_length", (16, 32, 64))
    report, _ = plan(ask(PlanRequest(("L4",), sweep=sweep), RUNGS[0]))
    assert report.sweep is not None
    (line,) = report.sweep.lines
    sizes = [peak.least_bytes or 0 for peak in line.peaks]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    assert line.largest_fitting == 64


@pytest.mark.slow
def test_why_adds_up_to_the_peak(ask: Callable[..., SurveyRequest]) -> None:
    report, _ = plan(ask(PlanRequest(("L4",), why="full"), RUNGS[0]))
    assert report.why is not None
    assert report.why.micro_batch_size == report.results[0].micro_batch_size
    for phase in report.why.phases:
        assert sum(phase.by_category.values()) == phase.peak_allocated_bytes
    assert report.why.formula.terms[0].name == "weights"


def test_what_cannot_be_simulated_is_told_with_the_formula(
    ask: Callable[..., SurveyRequest],
) -> None:
    labels = ("unsupported", "exception", "segfault")
    rungs = tuple(
        Rung(label, replace(RUNGS[0].config, lora_rank=i)) for i, label in enumerate(labels, 1)
    )
    report, _ = plan(ask(PlanRequest(("L4",)), *rungs, breaks=True))
    assert [row.outcome for row in report.results] == ["unsupported", "failed", "crashed"]
    for row in report.results:
        assert "; lower bound " in (row.reason or "")
    assert (report.status, report.exit_code) == ("partial", ExitCode.INCONCLUSIVE)


def test_the_formula_alone_can_say_no(ask: Callable[..., SurveyRequest]) -> None:
    rung = Rung("unsupported", RUNGS[0].config)
    report, _ = plan(ask(PlanRequest(("1KiB",)), rung, breaks=True))
    (row,) = report.results
    assert row.outcome == "skipped"
    assert row.missed_by_bytes
    assert "needs a GPU" in (row.reason or "")
    assert report.exit_code == ExitCode.NO


def test_a_signal_ends_a_plan_with_what_is_known(ask: Callable[..., SurveyRequest]) -> None:
    rungs = (
        Rung("unsupported", RUNGS[0].config),
        Rung("hang", replace(RUNGS[0].config, lora_rank=3)),
    )
    seen: list[bool] = []

    def stop() -> ExitCode | None:
        seen.append(True)
        return ExitCode.INTERRUPTED if len(seen) > 20 else None

    report, _ = plan(ask(PlanRequest(("L4",)), *rungs, breaks=True), stop)
    assert (report.status, report.exit_code) == ("interrupted", ExitCode.INTERRUPTED)
    assert report.results[1].failure is not None
    assert report.results[1].failure.code == "not_reached"
    assert report.next_commands[0].startswith("oomdoctor plan")
