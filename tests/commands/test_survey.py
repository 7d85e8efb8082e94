"""A survey ends with a report whatever its children do, and goes on from disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from analysis_make import request as survey_request
from tiny_models import tiny_folder

from oomdoctor.commands.events import SurveyEvent
from oomdoctor.commands.probe.run_survey import run_survey
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.render.ladder.header import headline
from oomdoctor.system.machine.lock import device_lock
from oomdoctor.system.store import run_folders
from oomdoctor.system.store.run_folders import RunFolder

WAYS = {
    "fits": "fits",
    "oom backward": "oom",
    "exception": "failed",
    "sigkill": "crashed",
    "segfault": "crashed",
    "hang": "timed_out",
    "exit 0": "crashed",
    "unreadable": "crashed",
    "abort-after-reply": "fits",
    "unsupported": "unsupported",
    "host-oom": "host_oom",
}
# Far above what a rung takes, also on a busy machine; only a rung that hangs needs all of it.
RUNG_LIMIT_S = 60.0
HANG_LIMIT_S = 5.0


@pytest.fixture
def ask(tmp_path: Path, misbehaving_python: str) -> Callable[..., SurveyRequest]:
    """A request for rungs with these labels, measured by the misbehaving worker."""
    model = tiny_folder(tmp_path / "model")

    def request(*labels: str, **changes: object) -> SurveyRequest:
        rungs = tuple(
            # Distinct ranks make distinct configurations of which none outdoes another's peak.
            Rung(label, TrainConfig(lora_rank=i + 1, sequence_length=64, effective_batch_size=1))
            for i, label in enumerate(labels)
        )
        asked = survey_request(
            model=ModelRef(str(model)),
            recipe=Recipe("ways", "", rungs, "command line"),
            device="cpu",
            sequence_length=64,
            effective_batch_size=1,
            rung_limit_s=RUNG_LIMIT_S,
            python=misbehaving_python,
        )
        return replace(asked, **changes)  # type: ignore[arg-type]

    return request


def survey(
    request: SurveyRequest,
    folder: RunFolder | None = None,
    stop: Callable[[], ExitCode | None] = lambda: None,
    events: list[SurveyEvent] | None = None,
) -> tuple[Report, RunFolder]:
    folder = folder or run_folders.create("tiny")
    told = events if events is not None else []
    report = run_survey(request, folder, wait=False, on_event=told.append, stop=stop)
    return report, folder


@pytest.mark.slow
def test_every_end_of_a_child_leaves_a_row_and_the_survey_ends(
    ask: Callable[..., SurveyRequest],
) -> None:
    report, folder = survey(ask(*WAYS, rung_limit_s=HANG_LIMIT_S))
    assert {result.label: result.outcome for result in report.results} == WAYS
    assert report.status == "ok"
    assert report.exit_code == 0
    assert len(report.ranking) == 2
    assert folder.read_report() == report
    for name in WAYS:
        slug = name.replace(" ", "-")
        (job_folder,) = folder.path.glob(f"*-{slug}-mb1")
        kept = {path.name for path in job_folder.iterdir()}
        assert {"job.json", "log.txt", "attempt.json"} <= kept, name


def test_nothing_fits(ask: Callable[..., SurveyRequest]) -> None:
    report, _ = survey(ask("oom load", "unsupported"))
    assert (report.status, report.exit_code) == ("no", ExitCode.NO)


def test_nothing_fits_and_something_crashed(ask: Callable[..., SurveyRequest]) -> None:
    report, _ = survey(ask("oom load", "segfault"))
    assert (report.status, report.exit_code) == ("partial", ExitCode.INCONCLUSIVE)


def test_a_rung_that_cannot_fit_is_not_started(ask: Callable[..., SurveyRequest]) -> None:
    events: list[SurveyEvent] = []
    report, _ = survey(ask("fits", vram_bytes=4000), events=events)
    (result,) = report.results
    assert result.outcome == "skipped"
    assert "1,000" in (result.reason or "")
    assert result.missed_by_bytes is not None
    assert not [event for event in events if event.kind == "trying"]
    assert report.exit_code == ExitCode.NO


@pytest.mark.parametrize("code", [ExitCode.INTERRUPTED, ExitCode.TERMINATED])
def test_a_signal_ends_the_survey_with_what_is_known(
    ask: Callable[..., SurveyRequest], code: ExitCode
) -> None:
    events: list[SurveyEvent] = []

    def stop() -> ExitCode | None:
        return code if any(event.kind == "tried" for event in events) else None

    report, folder = survey(ask("fits", "hang", rung_limit_s=600.0), stop=stop, events=events)
    assert report.exit_code == code
    assert report.status == "interrupted"
    assert [result.outcome for result in report.results] == ["fits", "skipped"]
    assert any("--resume" in line for line in report.next_commands)
    assert folder.read_report() == report


def test_a_signal_while_looking_at_the_model(ask: Callable[..., SurveyRequest]) -> None:
    report, _ = survey(ask("fits"), stop=lambda: ExitCode.INTERRUPTED)
    assert report.exit_code == ExitCode.INTERRUPTED
    assert [result.outcome for result in report.results] == ["skipped"]


@pytest.mark.parametrize("by", ["signal", "time limit"])
def test_an_end_in_the_first_seconds_leaves_lower_bounds(
    ask: Callable[..., SurveyRequest], by: str
) -> None:
    request = ask("full", vram_bytes=20 << 30, model=ModelRef("meta-llama/Llama-3.1-8B"))
    if by == "signal":
        report, folder = survey(request, stop=lambda: ExitCode.TERMINATED)
        assert (report.status, report.exit_code) == ("interrupted", ExitCode.TERMINATED)
    else:
        report, folder = survey(replace(request, time_limit_s=0.001))
        assert (report.status, report.exit_code) == ("no", ExitCode.NO)  # its only rung cannot fit
    (row,) = report.results
    assert (row.outcome, row.failure) == ("skipped", None)
    assert "needs at least 59.8 GiB" in (row.reason or "")
    assert report.budget is not None and report.budget.usable_bytes <= 20 << 30
    assert folder.read_partial() is None


def test_results_are_on_disk_while_the_survey_goes_on(ask: Callable[..., SurveyRequest]) -> None:
    folder = run_folders.create("tiny")
    kept = []

    def listen(event: SurveyEvent) -> None:
        if event.kind == "trying":
            partial = folder.read_partial()
            kept.append([] if partial is None else [r.outcome for r in partial.results])

    run_survey(ask("fits", "exception"), folder, wait=False, on_event=listen, stop=lambda: None)
    assert kept == [[], ["fits", "skipped"]]
    assert folder.read_partial() is None


@pytest.mark.slow
def test_the_time_limit_stops_in_time_and_resume_goes_on(ask: Callable[..., SurveyRequest]) -> None:
    begin = time.monotonic()
    report, folder = survey(ask("hang", "fits", time_limit_s=3.0, rung_limit_s=600.0))
    assert time.monotonic() - begin < 15
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert [warning.code for warning in report.warnings] == ["time_limit"]
    again = replace(folder.read_request(), time_limit_s=None, rung_limit_s=HANG_LIMIT_S)
    resumed, _ = survey(again, folder)
    assert {r.label: r.outcome for r in resumed.results} == {"hang": "timed_out", "fits": "fits"}


def test_resume_does_not_repeat_what_is_on_disk(ask: Callable[..., SurveyRequest]) -> None:
    _, folder = survey(ask("fits", "oom load"))
    events: list[SurveyEvent] = []
    report, _ = survey(folder.read_request(), folder, events=events)
    assert not [event for event in events if event.kind == "trying"]
    assert [result.outcome for result in report.results] == ["fits", "oom"]


def test_a_busy_device_is_refused_with_the_holder(ask: Callable[..., SurveyRequest]) -> None:
    with (
        device_lock("cpu", False, lambda message: None, run="other-run"),
        pytest.raises(OomDoctorError, match="other-run") as raised,
    ):
        survey(ask("fits"))
    assert raised.value.exit_code == ExitCode.MACHINE_UNFIT
    assert "--wait" in (raised.value.hint or "")


def test_waiting_for_a_device_ends_with_a_signal(ask: Callable[..., SurveyRequest]) -> None:
    events: list[SurveyEvent] = []
    with device_lock("cpu", False, lambda message: None, run="other-run"):
        report = run_survey(
            ask("fits"),
            run_folders.create("tiny"),
            wait=True,
            on_event=events.append,
            stop=lambda: ExitCode.INTERRUPTED if events else None,
        )
    assert [event.kind for event in events] == ["waiting", "done"]
    assert report.exit_code == ExitCode.INTERRUPTED


def test_rows_are_no_longer_than_the_model_has_positions(ask: Callable[..., SurveyRequest]) -> None:
    request = ask("fits")
    long = replace(request.recipe.rungs[0].config, sequence_length=4096)
    recipe = replace(request.recipe, rungs=(Rung("fits", long),))
    report, _ = survey(replace(request, recipe=recipe))
    assert report.results[0].sequence_length == 128
    assert [warning.code for warning in report.warnings] == ["sequence_length"]
    assert " at 128 tokens on the CPU" in headline(report)
    assert report.request is not None
    assert report.request.sequence_length <= 128


def test_without_being_asked_the_cpu_is_refused_for_hours(
    ask: Callable[..., SurveyRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    from oomdoctor.commands.devices import device

    monkeypatch.setattr(device, "_CPU_FLOPS_PER_CORE", 1.0)
    plain = replace(device.slurm(), on_login_node=False)
    monkeypatch.setattr(device, "slurm", lambda: plain)
    assert survey(ask("fits"))[0].exit_code == 0  # --device cpu is obeyed
    with pytest.raises(OomDoctorError, match="no GPU") as raised:
        survey(ask("fits", device="auto"))
    assert raised.value.exit_code == ExitCode.MACHINE_UNFIT
    hint = raised.value.hint or ""
    assert hint.startswith("predict it without a GPU: oomdoctor plan ")
    assert "on the machine with the GPU" in hint
    assert "--device cpu" in hint


def test_an_interpreter_without_torch_is_the_machines_fault(
    ask: Callable[..., SurveyRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LACKING", "torch")
    with pytest.raises(OomDoctorError, match="torch") as raised:
        survey(ask("fits"))
    assert raised.value.exit_code == ExitCode.MACHINE_UNFIT
    assert "pip install torch" in (raised.value.hint or "")


def test_events_tell_every_try_with_its_place(ask: Callable[..., SurveyRequest]) -> None:
    events: list[SurveyEvent] = []
    survey(ask("fits", "oom load"), events=events)
    tried = [(event.index, event.total) for event in events if event.kind == "tried"]
    assert sorted(tried) == [(1, 2), (2, 2)]
    assert events[0].kind == "inspecting"
    assert events[-1].kind == "done"


def test_a_resumed_run_on_another_device_starts_anew(ask: Callable[..., SurveyRequest]) -> None:
    _, folder = survey(ask("fits"))
    for job_file in folder.path.glob("*-fits-mb1/job.json"):
        text = job_file.read_text().replace('"device_id": "cpu of', '"device_id": "another cpu of')
        job_file.write_text(text)
    events: list[SurveyEvent] = []
    survey(folder.read_request(), folder, events=events)
    assert [event for event in events if event.kind == "trying"]
    assert any("another device" in (event.message or "") for event in events)


def test_a_resumed_run_is_judged_by_todays_budget(ask: Callable[..., SurveyRequest]) -> None:
    request = ask("fits", "oom load", vram_bytes=100_000)
    report, folder = survey(request)
    assert [result.outcome for result in report.results] == ["fits", "oom"]
    events: list[SurveyEvent] = []
    survey(replace(request, vram_bytes=200_000), folder, events=events)
    assert [event.rung.label for event in events if event.kind == "trying" and event.rung] == [
        "oom load"
    ]


def test_the_budget_is_that_of_the_moment_the_device_is_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from oomdoctor.commands.devices import device
    from oomdoctor.records.job.machine import Gpu
    from oomdoctor.system.machine.devices import Device

    def card(free: int) -> Gpu:
        return Gpu(0, "GPU-1", "a card", 100, free, "9.0", ())

    monkeypatch.setattr(device, "list_gpus", lambda: (card(90),))
    now = device.as_it_is_now(Device("cuda", card(10)))
    assert now.gpu is not None
    assert now.gpu.free_bytes == 90
    assert device.as_it_is_now(Device("cpu", None)).gpu is None


def test_waiting_for_a_device_ends_with_the_time_limit(ask: Callable[..., SurveyRequest]) -> None:
    with (
        device_lock("cpu", False, lambda message: None, run="other-run"),
        pytest.raises(OomDoctorError, match="other-run"),
    ):
        run_survey(
            ask("fits", time_limit_s=0.5),
            run_folders.create("tiny"),
            wait=True,
            on_event=lambda event: None,
            stop=lambda: None,
        )


@pytest.mark.slow
def test_a_child_that_cannot_be_killed_is_left_behind(
    ask: Callable[..., SurveyRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    from oomdoctor.commands.jobs import host

    monkeypatch.setattr(host, "KILL_LIMIT_S", 0.5)
    monkeypatch.setattr(host, "_kill_group", lambda pid: None)
    report, _ = survey(ask("hang", rung_limit_s=1.0))
    assert report.results[0].outcome == "timed_out"


def test_rungs_that_become_one_are_measured_once(ask: Callable[..., SurveyRequest]) -> None:
    request = ask("fits")
    config = request.recipe.rungs[0].config
    rungs = tuple(
        Rung(f"fits {length}", replace(config, sequence_length=length)) for length in (128, 300)
    )
    report, _ = survey(replace(request, recipe=replace(request.recipe, rungs=rungs)))
    assert len(report.results) == 1
