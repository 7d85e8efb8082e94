"""The live log of a process on a real GPU, so that `oomdoctor watch` sees its training.

Its peaks are those since the start: if torch's own were reset, the script would see it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oomdoctor.monitor.inside.ending import StepMemory
    from oomdoctor.monitor.log import LiveLog


class Live:
    """Starts a log at the first step, when the rank and the devices are known."""

    def __init__(self) -> None:
        self._log: LiveLog | None = None
        self._inode: int | None = None

    def write(self, devices: dict[int, dict[str, Any]], steps: dict[int, StepMemory]) -> None:
        """Write the memory after a step; `devices` are facts, both by the index of the device."""
        from oomdoctor.monitor.log import LiveLog
        from oomdoctor.records.inside.live import LiveGpu, LiveStep

        if self._log is None:
            gpus = (
                LiveGpu(n, facts.get("name"), facts.get("uuid"), facts.get("total_bytes"))
                for n, facts in sorted(devices.items())
            )
            self._log = LiveLog(tuple(gpus))
            if self._log.path is not None:
                self._inode = self._log.path.stat().st_ino
        for device, step in steps.items():
            self._log.write(
                LiveStep(
                    step=step.step,
                    time_s=self._log.elapsed_s(),
                    allocated_bytes=step.allocated_bytes,
                    reserved_bytes=step.reserved_bytes,
                    peak_allocated_bytes=step.peak_allocated_bytes,
                    peak_reserved_bytes=step.peak_reserved_bytes,
                    device=device,
                )
            )

    def note_failure(self, step: int, requested: int) -> None:
        """Write that a request failed."""
        if self._log is not None:
            self._log.note("oom", step, f"tried to allocate {requested} bytes")

    def close(self, step: int) -> None:
        """Write that the process ends."""
        if self._log is not None:
            self._log.close(step)

    def path(self) -> Path | None:
        """The file, as long as no callback of the script has replaced it by its own log."""
        path = None if self._log is None else self._log.path
        with suppress(OSError):
            if path is not None and path.stat().st_ino == self._inode:
                return path
        return None
