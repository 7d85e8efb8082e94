"""`--snapshot` and `--trace` of `plan` and `probe`: files that viewers open."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis_make import request as survey_request
from tiny_models import tiny_folder

from oomdoctor.commands.plan.run_plan import run_plan
from oomdoctor.commands.probe.run_survey import run_survey
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.facts.choices import Sharding
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.report.plan import PlanRequest
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.records.report.snapshot import SnapshotDevice
from oomdoctor.snapshot.device_answer import device_of
from oomdoctor.snapshot.history import history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.system.store import run_folders

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CONFIG = TrainConfig(sequence_length=64, effective_batch_size=4)


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., SurveyRequest]:
    model = tiny_folder(tmp_path / "model")

    def request(**changes: Any) -> SurveyRequest:
        return survey_request(
            **{
                "model": ModelRef(str(model)),
                "recipe": Recipe("tiny", "", (Rung("full", CONFIG),), "command line"),
                "sequence_length": 64,
                "effective_batch_size": 4,
                "micro_batch_size": 2,
                "python": sys.executable,
                **changes,
            }
        )

    return request


def read(path: str) -> SnapshotDevice:
    snapshot = read_snapshot(Path(path))
    (device,) = snapshot.devices
    return device_of(history_of(snapshot, device))


def planned(request: SurveyRequest) -> Report:
    folder = run_folders.create("tiny")
    return run_plan(request, folder, on_event=lambda event: None, stop=lambda: None)


@pytest.mark.usefixtures("one_simulator")
def test_a_plan_is_written_as_a_snapshot(ask: Callable[..., SurveyRequest]) -> None:
    plan = PlanRequest(("L4",))
    report = planned(ask(device="cuda", plan=plan, snapshot="full"))
    (row,), (file,) = report.results, report.files
    assert (file.kind, file.label, file.micro_batch_size) == ("snapshot", "full", 2)
    assert report.next_commands[0] == f"oomdoctor snapshot {file.path}"
    found = read(file.path)
    assert found.peak_allocated_bytes == row.peak_allocated_bytes
    assert found.peak_reserved_bytes == row.peak_reserved_bytes
    assert found.steps >= 2 and found.peak is not None
    # On a card that is too small, the request that failed is in it.
    plan = PlanRequest(("3MiB",))
    (file,) = planned(ask(device="cuda", plan=plan, snapshot="full", headroom=0.0)).files
    assert read(file.path).oom is not None


@pytest.mark.usefixtures("one_simulator")
@pytest.mark.parametrize("sharding", ["none", "zero2"])
def test_a_plan_is_written_as_a_trace_as_long_as_its_step(
    ask: Callable[..., SurveyRequest], sharding: Sharding
) -> None:
    config = replace(CONFIG, sharding=sharding, world_size=1 if sharding == "none" else 2)
    recipe = Recipe("tiny", "", (Rung("full", config),), "command line")
    asked = ask(device="cuda", plan=PlanRequest(("L4",)), trace="full", recipe=recipe)
    report = planned(replace(asked, micro_batch_size=1))
    (row,), (file,) = report.results, report.files
    assert (file.kind, file.label, file.micro_batch_size) == ("trace", "full", 1)
    events = json.loads(Path(file.path).read_text())["traceEvents"]
    kernels = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert row.tokens_per_s is not None
    step_s = config.effective_batch_size * config.sequence_length / row.tokens_per_s
    assert sum(event["dur"] for event in kernels) == pytest.approx(step_s * 1e6)
    assert {"mm", "bmm"} & {event["name"] for event in kernels}
    assert any(event["args"].get("FLOPs") for event in kernels)


@pytest.mark.usefixtures("one_simulator")
def test_without_a_speed_there_is_no_trace(ask: Callable[..., SurveyRequest]) -> None:
    report = planned(ask(device="cuda", plan=PlanRequest(("24GiB",)), trace="full"))
    assert not report.files
    (warn,) = (warn for warn in report.warnings if warn.code == "not_recorded")
    assert "speed cannot be estimated" in warn.message


def test_a_probe_records_a_snapshot_and_a_trace(ask: Callable[..., SurveyRequest]) -> None:
    request = ask(device="cpu", snapshot="full", trace="full", rung_limit_s=120.0)
    folder = run_folders.create("tiny")
    report = run_survey(request, folder, wait=False, on_event=lambda event: None, stop=lambda: None)
    (row,), (snapshot, trace) = report.results, report.files
    assert (snapshot.kind, trace.kind) == ("snapshot", "trace")
    found = read(snapshot.path)
    assert found.steps == 3 and row.peak_allocated_bytes is not None
    assert found.peak_allocated_bytes == pytest.approx(row.peak_allocated_bytes, rel=0.05)
    assert found.peak is not None and found.peak.categories.weights_bytes > 0
    events = json.loads(Path(trace.path).read_text())["traceEvents"]
    assert any("mm" in str(event.get("name")) for event in events)
    assert all(one.code != "not_recorded" for one in report.warnings)


@pytest.mark.usefixtures("one_simulator")
def test_a_rung_that_does_not_run_is_said(ask: Callable[..., SurveyRequest]) -> None:
    config = TrainConfig(
        method="lora", lora_targets=("nowhere",), sequence_length=64, effective_batch_size=4
    )
    rungs = (Rung("no such module", config),)
    recipe = Recipe("tiny", "", rungs, "command line")
    request = ask(device="cpu", recipe=recipe, snapshot="no such module", rung_limit_s=120.0)
    folder = run_folders.create("tiny")
    report = run_survey(request, folder, wait=False, on_event=lambda event: None, stop=lambda: None)
    assert report.files == ()
    assert "not_recorded" in [one.code for one in report.warnings]
