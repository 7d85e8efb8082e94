"""What `watch` answers: GPUs and their processes by the driver, trainings by their live logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oomdoctor.analysis.memory.trend import Growth, Trend
from oomdoctor.errors import ExitCode, OomDoctorError, machine_error
from oomdoctor.records.codec import shared
from oomdoctor.records.job.machine import Gpu
from oomdoctor.records.report.watch import (
    LiveGpu,
    LiveMessage,
    LivePoint,
    LiveStep,
    MemoryTrend,
    WatchAnswer,
    WatchedGpu,
    WatchedProcess,
    WatchedTraining,
)
from oomdoctor.system.machine.nvml import list_gpus, why_no_driver
from oomdoctor.system.store.live_logs import LiveRecord, family, is_alive, log_files, read_log

LATEST = "latest"
_MOST_POINTS, _MOST_EVENTS = 48, 5
_RECENT_STEPS = 50  # from which the time of a step is taken
_STILL_GROWING = 0.5  # of the steps of a growth may have passed since, without being denied
_SAME_TRAINING_S = 60.0  # the logs of its ranks are written about as late
_LEAST_STEPS = 18  # before which nothing can be said about a trend


@dataclass(frozen=True, slots=True)
class Asked:
    """What to watch: one process with its descendants, one GPU, one log, or the latest training."""

    text: str
    pid: int | None = None
    gpu: int | None = None
    log: Path | None = None


@dataclass
class Watcher:
    """Looks again and again. It keeps how the memory of each GPU changed while it looked."""

    asked: Asked
    gpus: Callable[[], tuple[Gpu, ...]] = lambda: list_gpus()
    clock: Callable[[], float] = time.time
    _trends: dict[str, _Sampled] = field(default_factory=dict)
    _logs: tuple[Path, ...] = ()

    def look(self) -> WatchAnswer:
        """What there is now.

        Raises:
            OomDoctorError: there is no GPU (exit 5); nothing that was asked about is there (exit
                3), such as a process that uses no GPU and writes no log.
        """
        seen = self.gpus()
        pid = self.asked.pid
        pids = frozenset() if pid is None else family(pid) | {pid}
        records = self._records(pids)
        pids |= {record.header.pid for record in records}
        mine = {gpu.gpu_uuid for record in records for gpu in _used(record)}
        chosen = [gpu for gpu in seen if self._is_asked(gpu, pids, mine)]
        if not chosen and not records:
            raise self._nothing(seen)
        free: dict[str | None, int | None] = {gpu.uuid: gpu.free_bytes for gpu in seen}
        return WatchAnswer(
            asked=self.asked.text,
            gpus=tuple(self._gpu(gpu, pids) for gpu in chosen),
            trainings=tuple(
                _training(record, card, self.clock(), free.get(card.gpu_uuid))
                for record in records
                for card in _used(record)
            ),
        )

    def _records(self, pids: frozenset[int]) -> list[LiveRecord]:
        """The live logs that belong to what was asked; kept, so that a later look shows the end."""
        kept = self._logs if self.asked.log is None else (self.asked.log,)
        logs = [record for path in kept or log_files() if (record := read_log(path)) is not None]
        if not kept:
            logs = self._chosen(logs, pids)
            self._logs = tuple(record.path for record in logs)
        return sorted(logs, key=lambda r: (r.header.rank or 0, r.header.pid))

    def _chosen(self, logs: list[LiveRecord], pids: frozenset[int]) -> list[LiveRecord]:
        if self.asked.pid is not None:
            return [r for r in logs if r.header.pid in pids]
        if self.asked.gpu is not None:
            uuids = {gpu.uuid for gpu in self.gpus() if gpu.index == self.asked.gpu}
            running = [r for r in logs if not r.has_ended]
            return [r for r in running if uuids & {gpu.gpu_uuid for gpu in _used(r)}]
        pool = [record for record in logs if not record.has_ended] or logs
        return [record for record in pool if _together(record, pool[0])]

    def _is_asked(self, gpu: Gpu, pids: frozenset[int], mine: set[str | None]) -> bool:
        if self.asked.gpu is not None:
            return gpu.index == self.asked.gpu
        return gpu.uuid in mine or any(process.pid in pids for process in gpu.processes)

    def _gpu(self, gpu: Gpu, pids: frozenset[int]) -> WatchedGpu:
        used = None if gpu.free_bytes is None else gpu.total_bytes - gpu.free_bytes
        sampled = self._trends.setdefault(gpu.uuid, _Sampled())
        return WatchedGpu(
            index=gpu.index,
            uuid=gpu.uuid,
            gpu_name=gpu.name,
            total_bytes=gpu.total_bytes,
            used_bytes=used,
            processes=tuple(
                WatchedProcess(process.pid, process.name, process.used_bytes, process.pid in pids)
                for process in sorted(gpu.processes, key=lambda process: -(process.used_bytes or 0))
            ),
            trend=sampled.trend(self.clock(), used, gpu.free_bytes),
        )

    def _nothing(self, seen: tuple[Gpu, ...]) -> OomDoctorError:
        if not seen:
            return machine_error(
                "no_gpu",
                f"there is no GPU to watch: {why_no_driver() or 'the driver sees none'}",
                "run `oomdoctor watch` on the machine that trains",
            )
        if self.asked.gpu is not None:
            indexes = ", ".join(str(gpu.index) for gpu in seen)
            return _no(f"there is no GPU {self.asked.gpu}", f"the GPUs here: {indexes}")
        if self.asked.pid is not None and not is_alive(self.asked.pid):
            return _no(f"there is no process {self.asked.pid}", "oomdoctor watch latest")
        if self.asked.pid is not None:
            return _no(
                f"process {self.asked.pid} uses no GPU and writes no live log",
                "oomdoctor watch --gpu 0",
            )
        log = self.asked.log
        return _no(
            f"{log} is not a live log" if log else "no training writes a live log here",
            "start it with `oomdoctor run`, or add oomdoctor.monitor.MemoryCallback; "
            "or run `oomdoctor watch --gpu 0`",
        )


class _Sampled:
    """The memory in use of one GPU, sampled by the clock; every sample is a step of the trend."""

    def __init__(self) -> None:
        self._trend, self._count = Trend(0), 0
        self._begin = 0.0
        self._growth: Growth | None = None

    def trend(self, now: float, used: int | None, free: int | None) -> MemoryTrend:
        if used is None or free is None:
            return MemoryTrend("too_short")
        self._begin = self._begin or now
        self._count += 1
        self._growth = self._trend.add(self._count, used) or self._growth
        growth = self._growth
        if growth is not None and self._count - growth.until <= _STILL_GROWING * (
            growth.until - growth.since
        ):
            each = (now - self._begin) / max(1, self._count - 1)
            rate = growth.bytes_per_step / each if each else 0.0
            return MemoryTrend(
                "growth", per_s_bytes=round(rate), full_in_s=round(free / rate, 1) if rate else None
            )
        return MemoryTrend("steady" if self._count >= _LEAST_STEPS else "too_short")


def _used(record: LiveRecord) -> list[LiveGpu]:
    """The GPUs that a training uses; all that it sees before it has told."""
    cards = {gpu.index: gpu for gpu in record.header.gpus}
    first = record.header.gpus[0].index if record.header.gpus else 0
    used = {step.device for step in record.steps} or {first}
    header = record.header
    alone = LiveGpu(first, header.gpu_name, header.gpu_uuid, header.total_bytes)
    return [cards.get(device, alone) for device in sorted(used)]


def _together(log: LiveRecord, other: LiveRecord) -> bool:
    """Whether two logs are those of ranks of one training."""
    mine, others = log.header, other.header
    if mine.pid == others.pid and mine.host == others.host:
        return True
    return (
        mine.world == others.world > 1
        and mine.command == others.command
        and mine.rank != others.rank
        and abs(log.written_at - other.written_at) < _SAME_TRAINING_S
    )


def _training(record: LiveRecord, card: LiveGpu, now: float, free: int | None) -> WatchedTraining:
    steps = [step for step in record.steps if step.device == card.index]
    last = steps[-1] if steps else None
    step_s = _step_time(steps)
    capacity = _capacity(steps, None if record.has_ended else free)
    return WatchedTraining(
        **(shared(record.header, WatchedTraining) | shared(card, WatchedTraining)),
        log=str(record.path),
        ended=record.has_ended,
        silent_s=round(max(0.0, now - record.written_at), 1),
        device=card.index,
        step=last.step if last else None,
        step_s=step_s,
        allocated_bytes=last.allocated_bytes if last else None,
        reserved_bytes=last.reserved_bytes if last else None,
        peak_allocated_bytes=max((s.peak_allocated_bytes for s in steps), default=None),
        peak_reserved_bytes=max((s.peak_reserved_bytes for s in steps), default=None),
        capacity_bytes=capacity,
        trend=_trend(steps, capacity, step_s),
        memory=_points(steps),
        events=tuple(
            LiveMessage(e.event, e.step, e.message) for e in record.events[-_MOST_EVENTS:]
        ),
    )


def _step_time(steps: Sequence[LiveStep]) -> float | None:
    recent = steps[-_RECENT_STEPS:]
    if len(recent) < 2 or recent[-1].step <= recent[0].step:
        return None
    return (recent[-1].time_s - recent[0].time_s) / (recent[-1].step - recent[0].step)


def _capacity(steps: Sequence[LiveStep], free: int | None) -> int | None:
    """What the process can have: what it has reserved, and what is free.

    That is what the driver says now, or else what the process was told when it last asked.
    """
    if steps and free is not None:
        return free + steps[-1].reserved_bytes
    for step in reversed(steps):
        if step.free_bytes is not None:
            return step.free_bytes + step.reserved_bytes
    return None


def _trend(steps: Sequence[LiveStep], capacity: int | None, step_s: float | None) -> MemoryTrend:
    """Whether what steps leave behind grows until now."""
    trend, growth = Trend(), None
    for step in steps:
        growth = trend.add(step.step, step.allocated_bytes) or growth
    reach = 0.0 if growth is None else max(16, _STILL_GROWING * (growth.until - growth.since))
    if growth is None or steps[-1].step - growth.until > reach:
        return MemoryTrend("steady" if len(steps) >= _LEAST_STEPS else "too_short")
    left = None
    if capacity is not None:
        left = max(0, capacity - steps[-1].peak_allocated_bytes) / growth.bytes_per_step
    return MemoryTrend(
        "growth",
        per_step_bytes=round(growth.bytes_per_step),
        per_s_bytes=round(growth.bytes_per_step / step_s) if step_s else None,
        full_at_step=None if left is None else steps[-1].step + int(left),
        full_in_s=None if left is None or step_s is None else round(left * step_s, 1),
    )


def _points(steps: Sequence[LiveStep]) -> tuple[LivePoint, ...]:
    width = min(_MOST_POINTS, len(steps))
    parts = [steps[i * len(steps) // width : (i + 1) * len(steps) // width] for i in range(width)]
    return tuple(
        LivePoint(part[-1].step, max(step.peak_allocated_bytes for step in part)) for part in parts
    )


def _no(message: str, hint: str) -> OomDoctorError:
    return OomDoctorError("nothing_to_watch", message, hint, ExitCode.NO)
