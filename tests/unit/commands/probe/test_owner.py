"""A survey has one owner of its setup: jobs, budget and report see the same device and request."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from analysis_make import request as survey_request
from plan_make import measured

from oomdoctor.analysis.dataset_distribution import Tally
from oomdoctor.analysis.search.from_prediction import RungPrediction
from oomdoctor.analysis.search.ladder import SkipRung
from oomdoctor.commands.devices import device
from oomdoctor.commands.probe import run_survey as survey_run
from oomdoctor.commands.probe import walk as survey_jobs
from oomdoctor.commands.probe.state import Ending, LadderPrediction, SurveySetup, SurveyState
from oomdoctor.errors import ExitCode
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.job.dataset import CountedRows, LengthsRequest
from oomdoctor.records.job.machine import Gpu
from oomdoctor.records.job.model import ModelRef, ModelSpec, ParameterCounts
from oomdoctor.records.job.result import Attempt, Inspection, PredictedPeak, ProbeJob, Reply
from oomdoctor.records.report.report import SurveyRequest, Warn
from oomdoctor.system.machine.devices import Device
from oomdoctor.system.store import run_folders
from oomdoctor.units import GIB

LONG = Rung("long", TrainConfig(sequence_length=512, effective_batch_size=1))
SHORT = Rung("short", TrainConfig(sequence_length=64, effective_batch_size=1, method="lora"))
BUSY = Gpu(0, "GPU-1", "NVIDIA L4", 22 * GIB, 2 * GIB, "8.9", ())
SPEC = ModelSpec("m", "local", "M", "m", "causal-lm", {}, None, None, None, False)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def request(*rungs: Rung, **changes: Any) -> SurveyRequest:
    asked = survey_request(
        model=ModelRef("m"),
        recipe=Recipe("r", "", rungs, "command line"),
        device="cuda",
        headroom=0.0,
        sequence_length=512,
        effective_batch_size=1,
        rung_limit_s=60.0,
    )
    return replace(asked, **changes)


def inspection(max_length: int | None = None) -> Inspection:
    counts = ParameterCounts(1000, 0, 0, 0, 0)
    return Inspection("M", counts, max_length, {}, None, None, None, None)


def state_of(*rungs: Rung, device: Device | None = None) -> SurveyState:
    folder = run_folders.create("m")
    warnings = (Warn("model_source", "from a folder"),)
    chosen = device or Device("cuda", BUSY)
    return SurveyState(SurveySetup(request(*rungs), SPEC, chosen, folder, warnings))


def attempt(config: TrainConfig, peak: int) -> Attempt:
    return Attempt(config.with_micro_batch(1), "fits", measured(peak), None, None, None, 1.0)


@contextlib.contextmanager
def _held(*_: object, **__: object) -> Iterator[None]:
    yield


def test_every_job_and_the_report_see_the_device_as_the_survey_got_hold_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it waits for the lock, another survey may hold memory or the GPU may be moved."""
    now = replace(BUSY, uuid="GPU-1 now", free_bytes=20 * GIB)
    seen: list[ProbeJob] = []

    def launch(_host: object, job: ProbeJob, _folder: Path, **_: object) -> Any:
        seen.append(job)
        if job.mode == "inspect":
            found = Attempt(job.config, "fits", None, None, None, None, 0.0)
            return found, Reply("inspected", inspection=inspection())
        return attempt(job.config, GIB), None

    monkeypatch.setattr(survey_run.hub, "resolve_with_notes", lambda _: (SPEC, ()))
    monkeypatch.setattr(survey_run, "list_gpus", lambda: (BUSY,))
    monkeypatch.setattr(survey_run, "device_lock", _held)
    monkeypatch.setattr(survey_run.device, "as_it_is_now", lambda _: Device("cuda", now))
    monkeypatch.setattr(survey_run.device, "not_given_back", lambda _: [])
    monkeypatch.setattr(survey_jobs, "launch", launch)
    folder = run_folders.create("m")
    report = survey_run.run_survey(
        request(SHORT), folder, wait=True, on_event=lambda _: None, stop=lambda: None
    )
    (tried,) = [job for job in seen if job.mode == "measure"]
    assert tried.device_id == "GPU-1 now"
    assert tried.budget_bytes == 20 * GIB
    assert report.budget is not None
    assert report.budget.free_bytes == 20 * GIB


def test_a_setup_cannot_be_changed_behind_the_jobs() -> None:
    setup = state_of(SHORT).setup
    with pytest.raises(FrozenInstanceError):
        setup.device = Device("cpu", None)  # type: ignore[misc]


def test_the_limits_lower_request_and_rungs_together_and_leave_the_setup() -> None:
    state = state_of(LONG, SHORT)
    state.set_limits(inspection(max_length=128))
    assert [rung.config.sequence_length for rung in state.rungs] == [128, 64]
    assert state.request.sequence_length == 128
    assert state.setup.request.sequence_length == 512
    assert state.context.usable_bytes == 2 * GIB
    assert [warning.code for warning in state.warnings] == ["model_source", "sequence_length"]


def test_counted_rows_change_request_and_rungs_together(
    counted: Callable[[int], CountedRows],
) -> None:
    state = state_of(LONG, SHORT)
    state.request = replace(state.request, lengths=LengthsRequest("rows.jsonl"))
    state.take_rows(counted(300))
    assert {rung.config.sequence_length for rung in state.rungs} == {300}
    assert state.request.recipe.rungs == state.rungs


def test_a_correction_moves_the_search_and_leaves_what_was_predicted_in_the_rows() -> None:
    state = state_of(SHORT)
    state.set_limits(inspection())
    key = SHORT.config.key()
    predicted = LadderPrediction()
    predicted.keep(key, [attempt(SHORT.config, 3 * GIB)], "cuda", 4 * GIB)
    state.take_prediction(predicted)
    assert state.context.predictions[key].peaks == {1: 3 * GIB}
    state.correct_predictions({key: RungPrediction({1: GIB})})
    assert state.context.predictions[key].peaks == {1: GIB}
    (row,) = state.results()
    assert row.predicted == PredictedPeak(3 * GIB - 100, None, 3 * GIB)


def test_on_the_cpu_only_tensor_bytes_are_predicted() -> None:
    predicted = LadderPrediction()
    predicted.keep("key", [attempt(SHORT.config, 3 * GIB)], "cpu", 4 * GIB)
    assert predicted.rungs["key"].peaks == {1: 3 * GIB - 100}
    (simulated,) = predicted.attempts["key"]
    assert PredictedPeak.of(simulated.measurement) == PredictedPeak(3 * GIB - 100, None, None)


def test_attempts_and_skips_settle_the_ladder() -> None:
    state = state_of(LONG, SHORT)
    state.set_limits(inspection())
    state.skip(SkipRung(LONG, "no", None))
    state.keep(attempt(SHORT.config, GIB))
    assert state.standing().next_step() is None
    assert {row.label: row.outcome for row in state.results()} == {
        "long": "skipped",
        "short": "fits",
    }


def test_a_survey_ends_by_its_time_limit_or_by_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    assert not Ending(lambda: None, 60.0, 50.0).is_over()
    late = Ending(lambda: None, 60.0, 40.0)
    assert late.is_over()
    assert late.by_time_limit()
    told = Ending(lambda: ExitCode.INTERRUPTED, 60.0, 40.0)
    assert told.is_over()
    assert not told.by_time_limit()
    assert not Ending(lambda: None, None, 0.0).is_over()


@pytest.fixture
def counted() -> Callable[[int], CountedRows]:
    def rows(longest: int) -> CountedRows:
        tally = Tally()
        tally.add(1, longest, "text")
        return tally.counted("rows.jsonl", "bytes/4", approximate=True, elapsed_s=0.0)

    return rows


@pytest.mark.parametrize(
    ("has", "emulated", "labels"),
    [(30, False, ["moved"]), (200, False, []), (30, True, []), (2, False, ["copied", "moved"])],
)
def test_rungs_that_need_more_host_memory_than_there_is(
    has: int, emulated: bool, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "total_memory", lambda: has * GIB)
    copied = TrainConfig(sharding="ddp", world_size=8, effective_batch_size=8)
    moved = replace(copied, sharding="zero2", offload="optimizer")
    rungs = (Rung("copied", copied), Rung("moved", moved), LONG)
    chosen = Device("cuda", replace(BUSY, emulated=emulated))
    counts = ParameterCounts(3 * 10**9, 3 * 10**9, 0, 0, 0)
    found = device.short_of_host(chosen, request(*rungs, gpus=8), rungs, counts)
    assert [rung.label for rung in rungs if f"{rung.label} (" in str(found)] == labels
    assert {warning.code for warning in found} == ({"host_memory"} if labels else set())
