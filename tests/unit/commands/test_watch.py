"""`watch` finds what was asked for, and tells trends by the log or by what it samples."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from live_logs import UUID, gpu, live_log

from oomdoctor.commands.watch import Asked, Watcher
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.job.machine import Gpu
from oomdoctor.records.report.watch import LiveEvent, WatchAnswer
from oomdoctor.system.store.live_logs import family
from oomdoctor.units import GIB, MIB

LATEST = Asked("latest")
GONE = 2**22 + 1  # above the largest process id of Linux


def look(asked: Asked, *gpus: Gpu) -> WatchAnswer:
    return Watcher(asked, lambda: gpus).look()


def test_the_latest_training_is_shown_with_its_gpu() -> None:
    live_log()
    answer = look(LATEST, gpu(os.getpid(), 5), gpu(7, index=1, uuid="GPU-2"))
    assert [one.index for one in answer.gpus] == [0]
    assert [(p.pid, p.asked) for p in answer.gpus[0].processes] == [(os.getpid(), True), (5, False)]
    assert answer.gpus[0].used_bytes == 33 * GIB
    (training,) = answer.trainings
    assert (training.step, training.total_steps, training.step_s) == (40, 500, 2.0)
    assert training.peak_allocated_bytes == 30 * GIB + 4000 * MIB
    assert training.capacity_bytes == 39 * GIB
    assert not training.ended
    assert len(training.memory) == 40


def test_the_trend_of_a_training_has_its_end() -> None:
    live_log()
    trend = look(LATEST).trainings[0].trend
    assert (trend.kind, trend.per_step_bytes, trend.per_s_bytes) == ("growth", 100 * MIB, 50 * MIB)
    left = int((9 * GIB - 4000 * MIB) / (100 * MIB))
    assert trend.full_at_step == 40 + left
    assert trend.full_in_s == pytest.approx(2 * left, abs=2)


@pytest.mark.parametrize(("steps", "kind"), [(5, "too_short"), (60, "steady")])
def test_a_training_without_growth(steps: int, kind: str) -> None:
    live_log(steps=steps, leak=0)
    trend = look(LATEST).trainings[0].trend
    assert (trend.kind, trend.full_at_step, trend.full_in_s) == (kind, None, None)


def test_growth_that_stopped_is_not_the_trend() -> None:
    path = live_log(steps=40)
    still = live_log(pid=GONE, steps=200, leak=0).read_text().splitlines()[41:]
    path.write_text(path.read_text() + "\n".join(still) + "\n")
    assert look(Asked("x", log=path)).trainings[0].trend.kind == "steady"


def test_a_process_counts_with_those_that_it_started() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert family(os.getpid()) >= {os.getpid(), child.pid}
        answer = look(Asked("x", pid=os.getpid()), gpu(child.pid))
        assert answer.gpus[0].processes[0].asked
    finally:
        child.communicate(b"\n")
    assert family(GONE) == frozenset()


def test_all_ranks_of_the_latest_training_are_shown() -> None:
    live_log(rank=0, world=2)
    live_log(pid=os.getppid(), rank=1, world=2, uuid="GPU-2")
    answer = look(LATEST, gpu(), gpu(index=1, uuid="GPU-2"), gpu(index=2, uuid="GPU-3"))
    assert [one.rank for one in answer.trainings] == [0, 1]
    assert [one.index for one in answer.gpus] == [0, 1]


def test_a_gpu_is_shown_with_the_trainings_that_run_on_it() -> None:
    live_log()
    live_log(pid=GONE)  # has ended
    answer = look(Asked("x", gpu=0), gpu(5))
    assert [one.pid for one in answer.trainings] == [os.getpid()]
    assert look(Asked("x", gpu=1), gpu(5), gpu(6, index=1, uuid="GPU-2")).trainings == ()


def test_a_training_that_was_killed_has_ended() -> None:
    live_log(pid=GONE)
    assert look(LATEST).trainings[0].ended
    live_log(pid=GONE, host="elsewhere")
    assert not look(LATEST).trainings[0].ended
    live_log(pid=GONE, host="elsewhere", events=(LiveEvent("end", 40, 81.0, ""),))
    assert look(LATEST).trainings[0].ended


def test_a_training_that_runs_comes_before_one_that_ended_later() -> None:
    running = live_log()
    os.utime(running, (1, 1))
    live_log(pid=GONE)
    assert look(LATEST).trainings[0].pid == os.getpid()


def test_what_was_watched_stays_so_when_another_training_starts() -> None:
    live_log(pid=os.getppid())
    watcher = Watcher(LATEST, lambda: ())
    watcher.look()
    live_log()
    assert [one.pid for one in watcher.look().trainings] == [os.getppid()]


def test_the_driver_alone_gives_a_trend_by_the_clock() -> None:
    now = 100.0
    free = [20 * GIB]

    def gpus() -> tuple[Gpu, ...]:
        nonlocal now
        now += 1.0
        free[0] -= 100 * MIB
        return (replace(gpu(5), free_bytes=free[0]),)

    watcher = Watcher(Asked("x", gpu=0), gpus, lambda: now)
    trends = [watcher.look().gpus[0].trend for _ in range(20)]
    assert trends[3].kind == "too_short"
    assert trends[-1].kind == "growth"
    assert trends[-1].per_s_bytes == pytest.approx(100 * MIB, rel=0.01)
    assert trends[-1].full_in_s == pytest.approx(free[0] / (100 * MIB), rel=0.01)


@pytest.mark.parametrize(
    ("asked", "gpus", "code", "said"),
    [
        (LATEST, (), ExitCode.MACHINE_UNFIT, "no GPU"),
        (Asked("x", gpu=0), (), ExitCode.MACHINE_UNFIT, "no GPU"),
        (Asked("x", pid=1), (), ExitCode.MACHINE_UNFIT, "no GPU"),
        (LATEST, (gpu(),), ExitCode.NO, "no training writes a live log"),
        (Asked("x", gpu=3), (gpu(),), ExitCode.NO, "no GPU 3"),
        (Asked("x", pid=1), (gpu(),), ExitCode.NO, "uses no GPU"),
        (Asked("x", pid=GONE), (gpu(),), ExitCode.NO, "no process"),
        (Asked("x", log=Path("/dev/null")), (gpu(),), ExitCode.NO, "not a live log"),
    ],
)
def test_nothing_to_watch(asked: Asked, gpus: tuple[Gpu, ...], code: ExitCode, said: str) -> None:
    with pytest.raises(OomDoctorError, match=said) as raised:
        look(asked, *gpus)
    assert raised.value.exit_code == code and raised.value.hint


def test_another_gpu_of_the_same_name_is_not_taken_for_it() -> None:
    live_log(uuid="GPU-other")
    assert look(LATEST, gpu(5)).gpus == ()
    assert UUID != "GPU-other"
