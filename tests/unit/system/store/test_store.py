from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from analysis_make import request as survey_request
from example_plans import cards_report, plan_report

from oomdoctor.errors import ExitCode, OomDoctorError, machine_error
from oomdoctor.records.configuration.config import Recipe, TrainConfig
from oomdoctor.records.job.model import ModelRef, ModelSpec
from oomdoctor.records.job.result import Attempt, ProbeJob
from oomdoctor.records.report.plan import PlanRequest
from oomdoctor.records.report.report import Report, bare_report
from oomdoctor.system.machine import lock as lock_module
from oomdoctor.system.machine.lock import device_lock
from oomdoctor.system.store import run_folders
from oomdoctor.system.store.record_files import write_record
from oomdoctor.system.store.run_folders import RunFolder, save_attempt
from oomdoctor.system.store.run_list import open_run, stored_runs

CONFIG = TrainConfig(micro_batch_size=2)
SPEC = ModelSpec("org/tiny", "catalogue", "GPT2LMHeadModel", "gpt2", "causal-lm", {"n_layer": 2})
JOB = ProbeJob("measure", "full-bf16", SPEC, CONFIG, "cpu")
ATTEMPT = Attempt(CONFIG, "fits", None, None, None, None, 1.5)
REQUEST = survey_request(
    model=ModelRef("org/tiny"),
    recipe=Recipe("none", "", (), "command line"),
    device="auto",
    sequence_length=128,
    effective_batch_size=16,
    tokens=1000,
    python="python3",
)
STARTED = datetime(2026, 11, 21, 14, 30, tzinfo=timezone(timedelta(hours=1)))
REPORT = replace(bare_report("probe", "no", 3, STARTED, 1.0), request=REQUEST)


def made(model: str = "org/tiny") -> RunFolder:
    folder = run_folders.create(model)
    folder.write_request(REQUEST)
    return folder


def refused(call: Callable[[], object]) -> OomDoctorError:
    with pytest.raises(OomDoctorError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("model", "slug"),
    [
        ("HuggingFaceTB/SmolLM2-135M", "smollm2-135m"),
        ("./my checkpoint/", "my-checkpoint"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("../..", "model"),
        ("x/" + "y" * 300, "y" * 40),
    ],
)
def test_a_run_is_named_after_time_and_model(isolated: Path, model: str, slug: str) -> None:
    folder = run_folders.create(model)
    assert folder.path.parent == isolated / "state" / "oomdoctor" / "runs"
    assert re.fullmatch(rf"\d{{8}}-\d{{6}}-{re.escape(slug)}-[0-9a-f]{{4}}", folder.name)


def test_two_runs_in_one_second_have_two_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    suffixes = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr(
        "oomdoctor.system.store.run_folders.secrets.token_hex", lambda n: next(suffixes)
    )
    first, second = run_folders.create("m"), run_folders.create("m")
    assert first.path != second.path


def test_records_come_back_as_they_were_written() -> None:
    folder = made()
    folder.write_report(REPORT)
    assert folder.read_request() == REQUEST
    assert folder.read_report() == REPORT
    assert sorted(path.name for path in folder.path.iterdir()) == ["report.json", "request.json"]


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made()
    before = (folder.path / "request.json").read_text()

    def full(self: Path, text: str, **_: object) -> int:
        with self.open("w") as file:
            file.write(text[:10])
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    error = refused(lambda: folder.write_request(replace(REQUEST, seed=1)))
    assert (error.code, error.exit_code) == ("state_unwritable", ExitCode.MACHINE_UNFIT)
    assert "No space left on device" in error.message
    assert "XDG_STATE_HOME" in str(error.hint)
    assert (folder.path / "request.json").read_text() == before
    assert [path.name for path in folder.path.iterdir()] == ["request.json"]


def test_a_state_folder_that_cannot_be_made(isolated: Path) -> None:
    (isolated / "state").write_text("a file is in the way")
    for call in (
        lambda: run_folders.create("m"),
        lambda: device_lock("cpu", False, print).__enter__(),
    ):
        error = refused(call)
        assert (error.code, error.exit_code) == ("state_unwritable", ExitCode.MACHINE_UNFIT)
    assert tuple(stored_runs()) == ()


def test_open_run_by_name_by_folder_and_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(open_run).code == "no_runs"
    first, second = made("a"), made("b")
    os.utime(first.path / "request.json", (1, 1))
    os.utime(second.path / "request.json", (2, 2))
    assert open_run() == open_run("latest") == open_run(None) == second
    assert open_run(first.name) == open_run(str(first.path)) == first
    monkeypatch.chdir(first.path.parent)
    assert open_run(f"./{first.name}").path.samefile(first.path)
    older = first.path.rename(first.path.with_name("20200101-000000-a-0000"))
    os.utime(older / "request.json", (9, 9))
    assert open_run() == second  # the name's time, not the disk's, is the run's time


def test_the_latest_probe_is_not_the_latest_plan() -> None:
    probe, plan = made("a"), run_folders.create("b")
    plan.write_request(replace(REQUEST, plan=PlanRequest(("T4",))))
    os.utime(probe.path / "request.json", (1, 1))
    assert open_run("latest") == plan
    assert open_run("latest", probes_only=True) == probe
    assert open_run(plan.name, probes_only=True) == plan  # named: `probe --resume` says why not
    shutil.rmtree(probe.path)
    assert "no probes" in refused(lambda: open_run("latest", probes_only=True)).message


def test_an_unknown_run_is_met_with_the_nearest_names() -> None:
    folder = made("smollm2")
    error = refused(lambda: open_run(folder.name[:-1]))
    assert (error.code, error.exit_code) == ("unknown_run", ExitCode.USAGE)
    assert folder.name in str(error.hint)


def test_a_plan_without_a_report_is_to_be_made_again() -> None:
    folder = run_folders.create("org/tiny")
    folder.write_request(replace(REQUEST, plan=PlanRequest(("T4",))))
    error = refused(folder.read_report)
    assert error.code == "no_report"
    assert "make the plan again" in str(error.hint)
    assert "probe" not in str(error.hint)


def test_both_commands_that_make_runs_are_told_where_there_are_none() -> None:
    hint = str(refused(open_run).hint)
    assert "oomdoctor probe MODEL" in hint and "oomdoctor plan MODEL" in hint


def test_a_run_without_a_report_is_to_be_resumed() -> None:
    folder = made()
    error = refused(folder.read_report)
    assert error.code == "no_report"
    assert f"oomdoctor probe --resume {folder.name}" in str(error.hint)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', "\udcff", "[" * 100_000])
def test_a_damaged_file_is_told_and_stays(text: str) -> None:
    folder = made()
    path = folder.path / "report.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    error = refused(folder.read_report)
    assert (error.code, error.exit_code) == ("unreadable_run", ExitCode.MACHINE_UNFIT)
    assert "report.json" in error.message
    assert path.read_bytes() == text.encode(errors="surrogateescape")


def test_list_runs_latest_first_with_all_that_is_odd() -> None:
    finished, going, broken = made("done"), made("going"), made("broken")
    finished.write_report(REPORT)
    (broken.path / "report.json").write_text("{")
    foreign = finished.path.parent / "holiday photos"
    foreign.mkdir()
    (finished.path.parent / "notes.txt").write_text("not a folder")
    for age, folder in enumerate((finished, going, broken)):
        os.utime(folder.path / "request.json", (age, age))
        folder.path.rename(folder.path.with_name(f"20260101-00000{age}-{folder.name[16:]}"))
    rows = list(stored_runs())
    assert [row.status for row in rows] == ["unreadable", "unfinished", "no", "foreign"]
    assert rows[2].started_at == REPORT.started_at
    assert (rows[2].model, rows[2].problem) == ("org/tiny", None)
    started = datetime(2026, 1, 1, 0, 0, 1).astimezone(UTC)
    assert rows[1].started_at == started.isoformat()
    assert "report.json" in str(rows[0].problem)
    assert (rows[3].name, rows[3].started_at, rows[3].model) == ("holiday photos", None, None)
    assert foreign.is_dir()


@pytest.mark.parametrize(
    ("report", "device"),
    [
        (plan_report, "NVIDIA GeForce RTX 4090"),
        (lambda: several(2), "NVIDIA GeForce RTX 4090, NVIDIA RTX A5000"),
        (lambda: several(5), "5 cards"),
    ],
)
def test_a_plan_is_listed_with_its_cards(report: Callable[[], Report], device: str) -> None:
    made("plan").write_report(report())
    (row,) = stored_runs()
    assert row.device == device


def several(count: int) -> Report:
    report = cards_report()
    return replace(report, cards=report.cards[:count])


def test_job_folders_are_numbered_and_never_reused() -> None:
    folder = made()
    names = [
        folder.job_folder(label, size).name
        for label, size in (("inspect", None), ("lora r=16 / ckpt+x", 4), ("../..", 1))
    ]
    assert names == ["01-inspect", "02-lora-r-16-ckpt-x-mb4", "03-job-mb1"]
    (folder.path / names[0]).rename(folder.path / "09-inspect")
    assert RunFolder(folder.path).job_folder("full", 2).name == "10-full-mb2"


def saved(folder: RunFolder, job: ProbeJob | None, attempt: Attempt | None) -> Path:
    path = folder.job_folder("full-bf16", 2)
    if job:
        write_record(path / "job.json", job)
    if attempt:
        save_attempt(path, attempt)
    return path


def test_attempts_are_the_finished_jobs_only() -> None:
    folder = made()
    saved(folder, replace(JOB, mode="inspect"), None)
    saved(folder, JOB, ATTEMPT)
    cut_off = saved(folder, JOB, None)
    damaged = saved(folder, JOB, ATTEMPT)
    document = json.loads((damaged / "attempt.json").read_text())
    (damaged / "attempt.json").write_text(json.dumps(document | {"from_the_future": 1}))
    empty = saved(folder, None, None)
    again = replace(ATTEMPT, outcome="oom")
    saved(folder, JOB, again)
    notes: list[str] = []
    assert folder.attempts(notes.append) == ((JOB, ATTEMPT), (JOB, again))
    assert [note.split(" ")[1].rstrip(":") for note in notes] == [
        cut_off.name,
        damaged.name,
        empty.name,
    ]
    assert "from_the_future" in notes[1]


@pytest.fixture
def holder() -> Iterator[None]:
    with device_lock("GPU-1", False, pytest.fail, run="20261121-143000-tiny-a1b2"):
        yield


def test_a_busy_device_is_refused_with_its_holder(holder: None) -> None:
    error = refused(lambda: device_lock("GPU-1", False, pytest.fail).__enter__())
    assert (error.code, error.exit_code) == ("device_busy", ExitCode.MACHINE_UNFIT)
    assert f"process {os.getpid()}, run 20261121-143000-tiny-a1b2" in error.message
    assert "--wait" in str(error.hint)
    with device_lock("GPU-2", False, pytest.fail):
        pass


def test_the_lock_is_free_after_use() -> None:
    for _ in range(2):
        with device_lock("GPU-1", False, pytest.fail):
            pass


def test_waiting_ends_when_the_holder_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    first = device_lock("cpu", False, pytest.fail)
    first.__enter__()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            first.__exit__(None, None, None)

    monkeypatch.setattr(lock_module.time, "sleep", sleep)
    told: list[str] = []
    with device_lock("cpu", True, told.append):
        assert len(slept) == 3
    assert told == [f"waiting for another survey on cpu (process {os.getpid()})"]


def test_waiting_may_be_given_up(holder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module.time, "sleep", lambda seconds: None)
    answers = iter([True, True, False])
    waiting = device_lock("GPU-1", True, lambda _: None, keep_waiting=lambda: next(answers))
    assert refused(waiting.__enter__).code == "device_busy"


def test_an_unknown_holder_and_a_file_system_without_locks(
    holder: None, isolated: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (lock_file,) = (isolated / "state" / "oomdoctor" / "locks").iterdir()
    lock_file.write_text("[]")
    error = refused(lambda: device_lock("GPU-1", False, pytest.fail).__enter__())
    assert "(process" not in error.message

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock_module.fcntl, "flock", no_locks)
    with device_lock("GPU-1", False, pytest.fail):
        assert "would go unnoticed" in caplog.text


def test_a_run_that_an_error_ended_says_which() -> None:
    """It was called killed."""
    folder = made()
    folder.note_problem(machine_error("no_model", "no such model"))
    (row,) = stored_runs()
    assert row.problem == "ended with an error: no such model"
    with pytest.raises(OomDoctorError, match="ended with an error: no such model"):
        folder.read_report()
    with folder.running():
        assert "killed" in folder.problem()
