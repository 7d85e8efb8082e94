"""One test for each way a child can end: it costs one rung and never the survey."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import tiny_job

from oomdoctor.commands.jobs import host as hosts
from oomdoctor.commands.jobs import launch as launching
from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import Stopped, launch
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.job.result import Attempt
from oomdoctor.system.machine.limits import HostLimit
from oomdoctor.worker import host as host_module
from oomdoctor.worker.host import cuda_was_touched

USABLE = 10_000


@pytest.fixture
def host(misbehaving_python: str, tmp_path: Path) -> Iterator[WorkerHost]:
    with WorkerHost(misbehaving_python, dict(os.environ), tmp_path) as host:
        yield host


def run_job(
    host: WorkerHost,
    folder: Path,
    label: str,
    *,
    usable: int = USABLE,
    deadline_s: float = 60.0,
    on_phase: Callable[[str], object] = lambda phase: None,
    stop: Callable[[], bool] = lambda: False,
) -> Attempt:
    """Launch a job that ends as its label says."""
    attempt, _ = launch(
        host,
        replace(tiny_job(), label=label),
        folder,
        usable_bytes=usable,
        deadline_s=deadline_s,
        on_phase=on_phase,
        stop=stop,
    )
    return attempt


def end(
    host: WorkerHost, tmp_path: Path, way: str, *, deadline_s: float = 60.0, usable: int = USABLE
) -> Attempt:
    folder = tmp_path / way.split()[0]
    folder.mkdir(exist_ok=True)
    attempt = run_job(host, folder, way, usable=usable, deadline_s=deadline_s)
    assert (folder / "job.json").exists()
    assert "the log of" in (folder / "log.txt").read_text()
    # The survey goes on: the next job is served as if nothing had happened.
    if way != "fits":
        assert end(host, tmp_path, "fits").outcome == "fits"
    return attempt


def test_a_measurement_within_the_budget_fits(host: WorkerHost, tmp_path: Path) -> None:
    attempt = end(host, tmp_path, "fits")
    assert attempt.outcome == "fits"
    assert attempt.measurement is not None
    assert attempt.reason is None


def test_a_measurement_above_the_budget_does_not_fit(host: WorkerHost, tmp_path: Path) -> None:
    folder = tmp_path / "above2"
    folder.mkdir()
    tight = run_job(host, folder, "fits", usable=999)
    assert tight.outcome == "oom"
    assert tight.measurement is not None
    assert tight.reason


@pytest.mark.parametrize("phase", ["load", "forward", "backward", "optimizer", "eval"])
def test_out_of_memory_in_a_phase(host: WorkerHost, tmp_path: Path, phase: str) -> None:
    attempt = end(host, tmp_path, f"oom {phase}")
    assert attempt.outcome == "oom"
    assert attempt.oom is not None
    assert attempt.oom.phase == phase


def test_a_python_exception(host: WorkerHost, tmp_path: Path) -> None:
    attempt = end(host, tmp_path, "exception")
    assert attempt.outcome == "failed"
    assert attempt.failure is not None
    assert attempt.failure.code == "ValueError"
    assert attempt.reason == "ValueError: shapes differ"
    assert "the log of exception" in attempt.failure.log_tail


def test_unsupported(host: WorkerHost, tmp_path: Path) -> None:
    attempt = end(host, tmp_path, "unsupported")
    assert (attempt.outcome, attempt.reason) == ("unsupported", "needs a GPU")


def test_sigkill(host: WorkerHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "oom_kills", lambda: 7)
    attempt = end(host, tmp_path, "sigkill")
    assert attempt.outcome == "crashed"
    assert attempt.failure is not None
    assert attempt.failure.signal == "SIGKILL"
    assert attempt.failure.last_phase == "forward"


def test_the_kernels_kill_for_host_memory(
    host: WorkerHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter(range(100))
    monkeypatch.setattr(launching, "oom_kills", lambda: next(counts))
    attempt = end(host, tmp_path, "sigkill")
    assert attempt.outcome == "host_oom"
    assert attempt.reason is not None
    assert "host memory" in attempt.reason


@pytest.mark.parametrize("kills", [0, 1])
def test_a_kill_names_the_limit_on_memory(
    host: WorkerHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    counts = iter(range(0, 100 * kills + 1, kills)) if kills else iter([7] * 100)
    monkeypatch.setattr(launching, "oom_kills", lambda: next(counts))
    limit = HostLimit("memory", "the cgroup user-7.slice allows 2.00 GiB", 1)
    monkeypatch.setattr(launching, "host_limits", lambda: (limit,))
    attempt = end(host, tmp_path, "sigkill")
    assert attempt.outcome == ("host_oom" if kills else "crashed")
    assert (attempt.reason or "").endswith("ran out; the cgroup user-7.slice allows 2.00 GiB")
    assert attempt.failure is not None
    assert attempt.failure.message == attempt.reason


def test_host_memory_reported_by_the_worker(
    host: WorkerHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = end(host, tmp_path, "host-oom")
    assert (attempt.outcome, attempt.reason) == ("host_oom", "host memory ran out in load")
    limit = HostLimit("addresses", "`ulimit -v` allows each process 2.00 GiB", 1)
    monkeypatch.setattr(launching, "host_limits", lambda: (limit,))
    assert end(host, tmp_path, "host-oom").reason == (
        "host memory ran out in load; `ulimit -v` allows each process 2.00 GiB"
    )


@pytest.mark.parametrize("way", ["abort", "exit"])
def test_an_end_for_lack_of_host_memory(host: WorkerHost, tmp_path: Path, way: str) -> None:
    attempt = end(host, tmp_path, f"no-host-memory {way}")
    assert attempt.outcome == "host_oom"
    assert attempt.reason == "host memory ran out in phase forward"
    assert attempt.failure is not None
    assert attempt.failure.signal == ("SIGABRT" if way == "abort" else None)


@pytest.mark.parametrize(
    ("end_of_start", "words"),
    [
        ("echo ImportError: failed to map segment >&2; exit 1", "failed to map segment; `ulimit"),
        ("kill -9 $$", "it was killed; the cgroup user-7.slice"),
    ],
)
def test_a_host_that_a_limit_keeps_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_of_start: str, words: str
) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{end_of_start}\n")
    script.chmod(0o755)
    found = (
        HostLimit("addresses", "`ulimit -v` allows each process 600 MiB", 1),
        HostLimit("memory", "the cgroup user-7.slice allows 300 MiB", 1),
    )
    monkeypatch.setattr(hosts, "host_limits", lambda: found)
    folder = tmp_path / "job"
    folder.mkdir()
    with (
        WorkerHost(str(script), dict(os.environ), tmp_path) as host,
        pytest.raises(OomDoctorError) as caught,
    ):
        run_job(host, folder, "fits")
    assert caught.value.code == "host_limit"
    assert words in caught.value.message


def test_a_segmentation_fault(host: WorkerHost, tmp_path: Path) -> None:
    attempt = end(host, tmp_path, "segfault")
    assert attempt.outcome == "crashed"
    assert attempt.failure is not None
    assert attempt.failure.signal == "SIGSEGV"


def test_a_hang_ends_at_the_deadline(host: WorkerHost, tmp_path: Path) -> None:
    begin = time.monotonic()
    attempt = end(host, tmp_path, "hang", deadline_s=1.0)
    assert attempt.outcome == "timed_out"
    assert attempt.reason == "stopped after 1 s in phase forward"
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_without_a_reply(host: WorkerHost, tmp_path: Path, code: int) -> None:
    attempt = end(host, tmp_path, f"exit {code}")
    assert attempt.outcome == "crashed"
    assert attempt.failure is not None
    assert attempt.failure.code == "no_reply"
    assert attempt.failure.exit_code == code


def test_a_library_that_prints_its_out_of_memory_and_exits(
    host: WorkerHost, tmp_path: Path
) -> None:
    attempt = end(host, tmp_path, "library-oom")
    assert attempt.outcome == "oom"
    assert attempt.oom is not None
    assert attempt.oom.dialect == "bitsandbytes"
    assert attempt.oom.phase == "forward"


def test_an_abort_after_the_reply_keeps_the_measurement(host: WorkerHost, tmp_path: Path) -> None:
    attempt = end(host, tmp_path, "abort-after-reply")
    assert attempt.outcome == "fits"
    assert attempt.measurement is not None
    assert attempt.reason is not None
    assert "SIGABRT" in attempt.reason


def test_an_unreadable_reply(host: WorkerHost, tmp_path: Path) -> None:
    attempt = end(host, tmp_path, "unreadable")
    assert attempt.outcome == "crashed"
    assert attempt.failure is not None
    assert attempt.failure.code == "unreadable_reply"


def test_left_over_grandchildren_are_ended(host: WorkerHost, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    attempt = end(host, tmp_path, f"grandchild {note}")
    assert attempt.outcome == "fits"
    pids = [int(pid) for pid in note.read_text().split()]
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_stop_ends_the_child_at_once(host: WorkerHost, tmp_path: Path) -> None:
    begin = time.monotonic()
    folder = tmp_path / "stop"
    folder.mkdir()
    with pytest.raises(Stopped):
        run_job(host, folder, "hang", deadline_s=600, stop=lambda: time.monotonic() - begin > 1.0)
    assert time.monotonic() - begin < 30
    assert end(host, tmp_path, "fits").outcome == "fits"


def test_a_dead_host_costs_one_rung(host: WorkerHost, tmp_path: Path) -> None:
    assert end(host, tmp_path, "fits").outcome == "fits"
    assert host.pid is not None
    os.kill(host.pid, 9)
    folder = tmp_path / "dead"
    folder.mkdir()
    attempt = run_job(host, folder, "hang", deadline_s=600)
    assert attempt.outcome == "crashed"
    assert attempt.failure is not None
    assert attempt.failure.code == "host_died"
    assert end(host, tmp_path, "fits").outcome == "fits"


def test_a_fault_of_the_listener_leaves_no_job_in_flight(host: WorkerHost, tmp_path: Path) -> None:
    folder = tmp_path / "fault"
    folder.mkdir()
    with pytest.raises(ZeroDivisionError):
        run_job(host, folder, "hang", on_phase=lambda phase: print(1 / 0))
    assert end(host, tmp_path, "fits").outcome == "fits"


def test_no_process_is_left_after_the_survey(misbehaving_python: str, tmp_path: Path) -> None:
    with WorkerHost(misbehaving_python, dict(os.environ), tmp_path) as host:
        end(host, tmp_path, "fits")
        pid = host.pid
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()


def test_the_phase_of_the_worker_is_told(host: WorkerHost, tmp_path: Path) -> None:
    phases: list[str] = []
    folder = tmp_path / "phases"
    folder.mkdir()
    run_job(host, folder, "hang", deadline_s=1.0, on_phase=phases.append)
    assert phases == ["forward"]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("#!/bin/sh\necho \"No module named 'torch'\" >&2; exit 1\n", "No module named"),
        ("#!/bin/sh\nexit 1\n", "printed nothing"),
    ],
)
def test_an_interpreter_that_cannot_work_is_an_error(
    tmp_path: Path, script: str, told: str
) -> None:
    python = tmp_path / "python"
    python.write_text(script)
    python.chmod(0o755)
    with (
        WorkerHost(str(python), dict(os.environ), tmp_path) as host,
        pytest.raises(OomDoctorError, match=told) as raised,
    ):
        end(host, tmp_path, "fits")
    assert raised.value.exit_code == ExitCode.MACHINE_UNFIT


def test_an_interpreter_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with (
        WorkerHost(str(tmp_path / "nowhere"), dict(os.environ), tmp_path) as host,
        pytest.raises(OomDoctorError, match="cannot be started"),
    ):
        end(host, tmp_path, "fits")


def test_a_touched_gpu_shows_in_the_descriptors(tmp_path: Path) -> None:
    (tmp_path / "3").symlink_to("/dev/nvidiactl")  # NVML opens this one, which is harmless
    assert not cuda_was_touched(tmp_path)
    (tmp_path / "4").symlink_to("/dev/nvidia-uvm")
    assert cuda_was_touched(tmp_path)
    assert not cuda_was_touched()


@pytest.mark.parametrize("visible", ["0", ""], ids=["a GPU", "no GPU"])
def test_the_host_does_not_import_torchao(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    real, seen = transformers.utils.is_torchao_available, []
    load = importlib.import_module

    def imported(name: str) -> object:
        if name != "asks":
            return load(name)
        seen.append(transformers.utils.is_torchao_available())
        return None

    monkeypatch.setattr(host_module, "_PRELOAD", ("asks",))
    monkeypatch.setattr(host_module, "_PRELOAD_ON_CPU", ())
    monkeypatch.setattr(importlib, "import_module", imported)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(host_module.gc, "freeze", lambda: None)
    host_module._preload(compiles=False)
    assert seen == [False]
    assert transformers.utils.is_torchao_available is real


@pytest.mark.slow
def test_after_a_touched_gpu_children_start_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    program = (
        "import sys; from oomdoctor.worker import host, __main__ as worker; "
        "host._PRELOAD = host._PRELOAD_ON_CPU = host._PRELOAD_WITHOUT_TORCHAO = (); "
        "host.cuda_was_touched = lambda: True; "
        "sys.exit(host.serve(lambda job, reply: None))"
    )
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{program}"\n')
    script.chmod(0o755)
    folder = tmp_path / "job"
    folder.mkdir()
    with WorkerHost(str(script), dict(os.environ), tmp_path) as host:
        attempt = run_job(host, folder, "fits", usable=10**9, deadline_s=120)
    assert attempt.outcome == "fits", attempt
    assert attempt.measurement is not None


@pytest.mark.slow
def test_the_real_host_forks_before_any_cuda_call(tmp_path: Path) -> None:
    """Nothing the host loads may initialise CUDA, or import what asks a device for a property."""
    import subprocess

    program = (
        "import importlib, sys\n"
        "import torch\n"
        "def touched(*_): sys.exit('CUDA was asked for')\n"
        "torch.cuda.init = torch.cuda._lazy_init = touched\n"
        "torch.cuda.get_device_properties = torch.cuda.get_device_capability = touched\n"
        "from oomdoctor.worker.host import _PRELOAD\n"
        "for name in _PRELOAD: importlib.import_module(name)\n"
        "assert 'bitsandbytes' not in sys.modules and 'peft' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
