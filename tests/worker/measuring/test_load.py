"""Who used the cores and the GPU, from what the kernel and the driver count."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from compared_steps import CPU

from oomdoctor.worker.measuring import nvml, timing

STAT = """cpu  9999 0 0 0 0 0 0 0 0 0
cpu0 100 10 20 5000 70 3 4 13 50 0
cpu1 200 0 0 5000 70 0 0 0 50 0
cpu2 999 999 999 5000 0 0 0 0 0 0
intr 1
"""


def test_busy_seconds_of_the_cores_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stat").write_text(STAT)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    ticks = os.sysconf("SC_CLK_TCK")
    # Idle time, waiting for disks, and what is already counted as user time are left out.
    assert timing._busy_seconds(tmp_path / "stat") == (150 + 200) / ticks
    assert timing._busy_seconds(tmp_path / "none") is None
    (tmp_path / "stat").write_text("cpu  0 0 0 0")
    assert timing._busy_seconds(tmp_path / "stat") is None


def test_what_this_process_did_not_use_was_used_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    start = timing.Start(wall_s=10.0, own_s=5.0, busy_s=100.0, unix_us=0)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: 14.0)
    monkeypatch.setattr(timing.time, "process_time", lambda: 7.0)
    monkeypatch.setattr(timing, "_busy_seconds", lambda: 106.0)
    monkeypatch.setattr(timing.torch, "get_num_threads", lambda: 2)
    found = timing.since(start, CPU)
    assert found is not None
    assert (found.threads, found.own_cpus, found.foreign_cpus) == (2, 0.5, 1.0)
    assert found.foreign_gpu is None
    assert timing.since(replace(start, wall_s=13.9), CPU) is None
    unknown = timing.since(replace(start, busy_s=None), CPU)
    assert unknown is not None
    assert unknown.foreign_cpus is None


def test_other_processes_on_the_gpu() -> None:
    own = os.getpid()
    assert nvml.foreign_share([(own, 60), (own + 1, 30), (own + 2, 20)]) == 0.5
    assert nvml.foreign_share([(own, 60), (own + 1, 20), (own + 1, 40)]) == 0.4
    assert nvml.foreign_share([(own, 100)]) == 0.0
    # In a container the driver may number processes differently.
    assert nvml.foreign_share([(own + 1, 30)]) is None
    assert nvml.foreign_share([]) is None
    assert nvml.foreign_utilization(None, 0) is None
