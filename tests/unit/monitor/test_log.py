"""The live log: what is written, what is read back, and that it never stops a training."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from oomdoctor.monitor import log as module
from oomdoctor.monitor.log import LiveLog
from oomdoctor.records.report.watch import LiveGpu, LiveStep
from oomdoctor.system.store import live_logs

GPU = LiveGpu(0, "NVIDIA H100", "GPU-1", 80 << 30)


def row(step: int, peak: int = 5, **more) -> LiveStep:
    return replace(LiveStep(step, step / 10, 3, 6, peak, 7, 9), **more)


def test_a_log_is_read_back(isolated: Path) -> None:
    log = LiveLog((GPU,), total_steps=4)
    assert log.path == isolated / "state" / "oomdoctor" / "live" / f"{os.getpid()}.jsonl"
    log.write(row(1))
    log.note("warning", 1, "memory grows")
    first = live_logs.read_log(log.path)
    assert first is not None and not first.has_ended
    log.close(2)
    found = live_logs.read_log(log.path)
    assert found is not None and found.has_ended
    assert found.steps == (row(1),)
    warning = found.events[0]
    assert (warning.event, warning.step, warning.message) == ("warning", 1, "memory grows")
    header = json.loads(log.path.read_text().splitlines()[0])
    assert header["schema"] == "oomdoctor-memory/1"
    assert (header["gpu_name"], header["gpu_uuid"], header["total_bytes"]) == (
        "NVIDIA H100",
        "GPU-1",
        80 << 30,
    )
    assert (header["pid"], header["world"], header["rank"]) == (os.getpid(), 1, None)
    assert log.path.stat().st_mode & 0o077 == 0


def test_a_half_written_line_is_left_out(tmp_path: Path) -> None:
    log = LiveLog((GPU,), path=tmp_path / "new" / "memory.jsonl")
    log.write(row(1))
    with log.path.open("a") as file:
        file.write('[1]\nno\n{"event": "later"}\n{"step": 2, "allocated_by')
    found = live_logs.read_log(log.path)
    assert found is not None
    assert [step.step for step in found.steps] == [1]
    assert found.events == ()


@pytest.mark.parametrize("text", ["", "no json\n", "[]\n", '{"schema": "other/1"}\n'])
def test_what_is_no_log_is_not_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    assert live_logs.read_log(tmp_path / "x.jsonl") is None
    assert live_logs.read_log(tmp_path / "missing.jsonl") is None


def test_a_long_log_is_thinned_and_keeps_the_peaks(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_ROWS_BEFORE_THINNING", 8)
    log = LiveLog((GPU,), path=tmp_path / "memory.jsonl")
    for step in range(1, 41):
        log.write(row(step, peak=99 if step == 31 else 5))
    log.write(row(41))
    log.close(41)
    found = live_logs.read_log(log.path)
    steps = [step.step for step in found.steps]
    assert steps == [*range(1, 9), *range(10, 25, 2), *range(28, 41, 4), 41]
    assert [s.step for s in found.steps if s.peak_allocated_bytes == 99] == [32]


def test_devices_are_thinned_apart(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_ROWS_BEFORE_THINNING", 1)
    log = LiveLog((GPU,), path=tmp_path / "memory.jsonl")
    log.write(row(1))  # from now on every second step
    for step, device in ((3, 0), (3, 1), (4, 0), (4, 1)):
        log.write(row(step, peak=10 * device + step, device=device))
    log.close(4)
    rows = [(s.device, s.step, s.peak_allocated_bytes) for s in live_logs.read_log(log.path).steps]
    assert rows == [(0, 1, 5), (0, 4, 4), (1, 4, 14)]


def test_a_full_disk_does_not_stop_the_training(tmp_path: Path) -> None:
    log = LiveLog((GPU,), path=Path("/dev/full"))
    log.write(row(1))
    log.note("oom", 1)
    log.close(1)
    assert log.path is None and "space" in log.why_not


def test_a_folder_that_cannot_be_written_is_said(isolated: Path) -> None:
    (isolated / "state").write_text("a file")
    log = LiveLog((GPU,))
    log.write(row(1))
    assert log.path is None and log.why_not


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    log = LiveLog((GPU,), path=tmp_path / "memory.jsonl")
    child = os.fork()
    if not child:
        log.write(row(1))
        log.close(1)
        os._exit(0)
    os.waitpid(child, 0)
    log.write(row(2))
    assert [step.step for step in live_logs.read_log(log.path).steps] == [2]


def test_the_log_of_another_host_is_not_replaced(monkeypatch) -> None:
    first = LiveLog((GPU,))
    monkeypatch.setattr(live_logs.platform, "node", lambda: "elsewhere")
    second = LiveLog((GPU,))
    assert second.path.name == f"{os.getpid()}-elsewhere.jsonl"
    assert live_logs.read_header(first.path) is not None
    assert len(live_logs.log_files()) == 2


def test_old_logs_are_removed() -> None:
    log = LiveLog((GPU,))
    old = log.path.with_name("1.jsonl")
    old.write_text("{}")
    os.utime(old, (0, 0))
    assert LiveLog((GPU,)).path.exists() and not old.exists()


def test_secrets_of_the_command_are_not_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--hf_token=planted-1"])
    text = LiveLog((GPU,), path=tmp_path / "memory.jsonl").path.read_text()
    assert "train.py" in text and "planted-1" not in text
