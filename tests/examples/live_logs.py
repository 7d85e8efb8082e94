"""Live logs as a training leaves them, and the GPUs that a driver shows beside them."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from json import dumps
from pathlib import Path

from oomdoctor.records.job.machine import Gpu, GpuProcess
from oomdoctor.records.report.watch import LiveEvent, LiveGpu, LiveHeader, LiveStep
from oomdoctor.system.store.live_logs import live_folder
from oomdoctor.units import GIB, MIB

UUID = "GPU-11111111-2222-3333-4444-555555555555"


def live_log(
    *,
    pid: int | None = None,
    steps: int = 40,
    leak: int = 100 * MIB,
    rank: int | None = None,
    world: int = 1,
    uuid: str = UUID,
    events: tuple[LiveEvent, ...] = (),
    host: str | None = None,
    peak: int = 30 * GIB,
) -> Path:
    """The log of a process, by default of this one, whose memory grows by `leak` each step."""
    pid = os.getpid() if pid is None else pid
    path = live_folder() / f"{pid}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    header = LiveHeader(
        pid=pid,
        host=host or platform.node(),
        rank=rank,
        world=world,
        started_at="2026-01-02T03:04:05+00:00",
        gpu_name="NVIDIA A100-SXM4-40GB",
        gpu_uuid=uuid,
        total_bytes=40 * GIB,
        command=("python", "train.py"),
        gpus=(LiveGpu(0, "NVIDIA A100-SXM4-40GB", uuid, 40 * GIB),),
        total_steps=500,
    )
    rows = [
        LiveStep(
            step=step,
            time_s=2.0 * step,
            allocated_bytes=20 * GIB + leak * step,
            reserved_bytes=32 * GIB,
            peak_allocated_bytes=peak + leak * step,
            peak_reserved_bytes=32 * GIB,
            free_bytes=7 * GIB if step == 1 else None,
        )
        for step in range(1, steps + 1)
    ]
    path.write_text("".join(dumps(asdict(one)) + "\n" for one in (header, *rows, *events)))
    return path


def gpu(*pids: int, index: int = 0, uuid: str = UUID) -> Gpu:
    """A GPU with these processes on it."""
    return Gpu(
        index=index,
        uuid=uuid,
        name="NVIDIA A100-SXM4-40GB",
        total_bytes=40 * GIB,
        free_bytes=7 * GIB,
        compute_capability="8.0",
        processes=tuple(GpuProcess(pid, "python", 30 * GIB - n) for n, pid in enumerate(pids)),
    )
