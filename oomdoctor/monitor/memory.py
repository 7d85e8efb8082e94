"""Watches the memory of this process's own training, step by step.

A step costs less than a millisecond for each device, and one question to the driver a second.
Nothing in here may stop a training: an error is reported once, and then it watches no more.
"""

from __future__ import annotations

import gc
import logging
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from oomdoctor.monitor.alerts import Alert, Alerts
from oomdoctor.monitor.log import LiveLine, LiveLog
from oomdoctor.monitor.pinned import PinnedMemory
from oomdoctor.monitor.readings import Reader, Reading, gpus
from oomdoctor.monitor.shared_folder import rank_and_world
from oomdoctor.records.codec import shared
from oomdoctor.records.report.watch import LiveEventKind, LiveStep
from oomdoctor.units import GIB, format_bytes

_LOG = logging.getLogger("oomdoctor.monitor")


class MemoryWatch:
    """The watch of this process's training. A context manager: it ends with the block.

    with watch_memory() as memory:
        for batch in loader:
            ...
            optimizer.step()
            memory.step()

    `alerts` holds the warnings so far.
    """

    def __init__(
        self,
        *,
        warn_at: float | None = 0.92,
        log: bool | str | os.PathLike[str] = True,
        live: bool = False,
        total_steps: int | None = None,
        on_alert: Callable[[Alert], object] | None = None,
    ) -> None:
        """Prepare to watch; it begins with the first step, or with the block.

        Warnings go to the logger "oomdoctor.monitor", to the live log and to `on_alert`. `warn_at`
        is the share of the memory that this process can have from which it warns, None for no
        warnings at all. `log` is True for a live log where `oomdoctor watch` looks, a file for
        another place, or False. With `live`, rank 0 shows a line on stderr. With `total_steps`,
        warnings say whether memory is enough for the whole training.

        Raises:
            ValueError: `warn_at` is not between 0 and 1.
        """
        if warn_at is not None and not 0 < warn_at <= 1:
            raise ValueError(f"warn_at is a share between 0 and 1, not {warn_at}")
        self.alerts: list[Alert] = []
        self._warn_at, self._total_steps, self._on_alert = warn_at, total_steps, on_alert
        self._wants_log, self._line = log, LiveLine() if live else None
        self._pid = os.getpid()
        self._is_off = False
        self._step = 0
        self._failed_at: int | None = None  # the step in which torch said that memory ran out
        self._reader: Reader | None = None
        self._log: LiveLog | None = None
        self._by_device: dict[int, Alerts] = {}
        self._pinned = PinnedMemory()
        self._readings: list[Reading] = []
        self._peaks: dict[str, int] = {}  # since metrics were taken

    @property
    def log_path(self) -> Path | None:
        """The file of the live log; None if there is none."""
        return None if self._log is None else self._log.path

    def __enter__(self) -> MemoryWatch:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)
        self.close()

    def start(self, total_steps: int | None = None) -> None:
        """Begin to watch, if CUDA is in use; else the first step does that after it is."""
        self._safely(self._begin, total_steps)

    def step(self, step: int | None = None) -> None:
        """Take note that an optimizer step has ended; steps are counted unless `step` is given."""
        self._step = self._step + 1 if step is None else step
        self._safely(self._take)

    def metrics(self) -> dict[str, float]:
        """Memory in GiB for a logger of experiments, of the fullest device; empty without a GPU.

        Peaks are those since the last call. `oomdoctor/used_share` is the peak as a share of what
        this process can have.
        """
        if not self._readings:
            return {}
        fullest = max(self._readings, key=lambda r: r.peak_allocated_bytes / r.capacity_bytes)
        peak = self._peaks.get("allocated", 0)
        values = {
            "oomdoctor/allocated_gib": fullest.allocated_bytes / GIB,
            "oomdoctor/reserved_gib": fullest.reserved_bytes / GIB,
            "oomdoctor/peak_allocated_gib": peak / GIB,
            "oomdoctor/peak_reserved_gib": self._peaks.get("reserved", 0) / GIB,
            "oomdoctor/used_share": peak / max(1, fullest.capacity_bytes),
        }
        self._peaks = {}
        return {name: round(value, 4) for name, value in values.items()}

    def note(self, event: LiveEventKind, message: str = "") -> None:
        """Write an event to the live log."""
        if self._log is not None:
            self._log.note(event, self._step, message)

    def failed(self, error: BaseException) -> None:
        """Take note that a step raised an exception, if memory ran out and torch did not say so."""
        from oomdoctor.monitor.guarding.diagnosed import is_out_of_memory

        if self._failed_at != self._step and is_out_of_memory(error):
            self.note("oom", str(error).partition("\n")[0][:1000])

    def close(self) -> None:
        """End the watch and the log."""
        if self._line is not None:
            self._line.erase()
        if self._log is not None and os.getpid() == self._pid:
            self._log.close(self._step)
        self._is_off = True

    def _safely(self, act: Callable[..., None], *arguments: Any) -> None:
        if self._is_off or os.getpid() != self._pid:
            return
        try:
            act(*arguments)
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._is_off = True
            _LOG.warning("oomdoctor: memory is no longer watched: %s", error, exc_info=True)

    def _begin(self, total_steps: int | None) -> None:
        self._total_steps = total_steps or self._total_steps
        self._start()
        if self._reader is not None:
            self._reader.begin()

    def _start(self) -> None:
        import torch

        if self._reader is not None:
            return
        if not torch.cuda.is_available():
            self._is_off = True
            _LOG.warning("oomdoctor: torch sees no CUDA GPU, so GPU memory is not watched")
        elif torch.cuda.is_initialized():
            self._reader = Reader()
            if self._wants_log is not False:
                path = None if self._wants_log is True else Path(self._wants_log)
                self._log = LiveLog(gpus(), path=path, total_steps=self._total_steps)
                _tell_of_failures(weakref.ref(self))
                if self._log.path is None:
                    _LOG.warning("oomdoctor: no live log is written: %s", self._log.why_not)

    def _on_out_of_memory(self, device: int, requested: int, free: int) -> None:
        """The allocator is about to raise an error, which the script may catch."""
        if self._is_off or os.getpid() != self._pid:
            return
        self._failed_at = self._step
        self.note(
            "oom",
            f"GPU {device}: tried to allocate {format_bytes(requested)} with {format_bytes(free)} "
            "free",
        )

    def _take(self) -> None:
        self._start()
        import torch

        # While a CUDA graph is recorded, nothing else may be asked of the driver.
        if self._reader is None or torch.cuda.is_current_stream_capturing():
            return
        self._readings = self._reader.read()
        for reading in self._readings:
            self._note_peaks(reading)
            self._write(reading)
            self._warn(reading)
        pinned = None if self._warn_at is None else self._pinned.look(self._step)
        if pinned is not None:
            self._say(pinned)
        if self._line is not None and rank_and_world()[0] in (None, 0):
            self._line.show(self._step, self._readings)

    def _note_peaks(self, reading: Reading) -> None:
        peaks = {"allocated": reading.peak_allocated_bytes, "reserved": reading.peak_reserved_bytes}
        self._peaks = {name: max(self._peaks.get(name, 0), size) for name, size in peaks.items()}

    def _write(self, reading: Reading) -> None:
        if self._log is not None:
            same = shared(reading, LiveStep)
            self._log.write(LiveStep(step=self._step, time_s=self._log.elapsed_s(), **same))

    def _warn(self, reading: Reading) -> None:
        if self._warn_at is None:
            return
        alerts = self._by_device.get(reading.device)
        if alerts is None:
            alerts = Alerts(self._warn_at, self._total_steps, _collected)
            self._by_device[reading.device] = alerts
        elapsed = self._log.elapsed_s() if self._log is not None else 0.0
        for alert in alerts.look(self._step, elapsed, reading):
            self._say(alert)

    def _say(self, alert: Alert) -> None:
        self.alerts.append(alert)
        if self._line is not None:
            self._line.erase()
        rank, world = rank_and_world()
        prefix = f"rank {rank}: " if world > 1 and rank is not None else ""
        _LOG.warning("oomdoctor: %s%s", prefix, alert.message)
        self.note("warning", alert.message)
        if self._on_alert is not None:
            self._on_alert(alert)


watch_memory = MemoryWatch


def _tell_of_failures(watch: weakref.ref[MemoryWatch]) -> None:
    """Let torch tell the watch when memory runs out. It cannot be asked to stop that again."""
    import torch

    def tell(device: int, requested: int, total: int, free: int) -> None:
        watching = watch()
        if watching is not None:
            with suppress(Exception):  # we are inside of the allocator
                watching._on_out_of_memory(device, requested, free)

    torch._C._cuda_attach_out_of_memory_observer(tell)


def _collected(device: int) -> int:
    import torch

    gc.collect()
    return int(torch.cuda.memory_allocated(device))
