"""Writes the live log of this process: its memory after each optimizer step, for `oomdoctor watch`.

Logs stay small: after 10,000 rows only every second step is written, after 20,000 every fourth, and
so on. A row's peaks are those since the row before, so no peak is lost. The standard library is all
it needs, and a log that cannot be written never stops a training.

The line on stderr with the memory of now moves on a terminal; in a log, one comes a minute.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from oomdoctor.monitor.readings import Reading
from oomdoctor.monitor.shared_folder import rank_and_world
from oomdoctor.records.report.watch import LiveEvent, LiveEventKind, LiveGpu, LiveHeader, LiveStep
from oomdoctor.system.store.live_logs import new_log_file
from oomdoctor.units import format_bytes, format_percent

_ROWS_BEFORE_THINNING = 10_000
_STEP_KEYS = tuple(field.name for field in fields(LiveStep))
_MOVING_S, _STILL_S = 0.5, 60.0
_ERASE = "\r\x1b[2K"


class LiveLog:
    """The live log of this process; `path` is None once it cannot be written.

    A process that was forked from it writes nothing. `why_not` says why there is no log.
    """

    def __init__(
        self,
        gpus: tuple[LiveGpu, ...],
        *,
        path: str | Path | None = None,
        total_steps: int | None = None,
    ) -> None:
        """Start a log at `path`, or where `oomdoctor watch` looks; an old file is replaced."""
        self.path: Path | None = None
        self.why_not: str | None = None
        self._pid, self._begin = os.getpid(), time.monotonic()
        self._file: IO[str] | None = None
        self._rows = 0
        self._step_apart = 1  # steps from one row to the next
        self._pending: dict[int, LiveStep] = {}
        try:
            self.path = new_log_file() if path is None else Path(path).absolute()
            if path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            self._give_up(error)
        self._put(asdict(_header(gpus, total_steps)))

    def write(self, step: LiveStep) -> None:
        """Write the memory of a device after a step. Rows are thinned, peaks are kept."""
        before = self._pending.pop(step.device, None)
        if before is not None:
            step = replace(
                step,
                peak_allocated_bytes=max(step.peak_allocated_bytes, before.peak_allocated_bytes),
                peak_reserved_bytes=max(step.peak_reserved_bytes, before.peak_reserved_bytes),
                free_bytes=before.free_bytes if step.free_bytes is None else step.free_bytes,
            )
        if step.step % self._step_apart:
            self._pending[step.device] = step
            return
        self._put(_row(step))
        self._rows += 1
        if self._rows >= _ROWS_BEFORE_THINNING:
            self._rows, self._step_apart = 0, 2 * self._step_apart

    def note(self, event: LiveEventKind, step: int, message: str = "") -> None:
        """Write an event: a warning, an allocation that failed, a skipped batch."""
        self._put(asdict(LiveEvent(event, step, self.elapsed_s(), message)))

    def elapsed_s(self) -> float:
        """Seconds since the log was started, for the rows."""
        return round(time.monotonic() - self._begin, 3)

    def close(self, step: int) -> None:
        """Write what is pending, and that the training has ended. The file stays."""
        for row in self._pending.values():
            self._put(_row(row))
        self._pending = {}
        self.note("end", step)
        if self._file is not None and os.getpid() == self._pid:
            self._file.close()
        self._file = None

    def _put(self, record: dict[str, Any]) -> None:
        if self._file is None or os.getpid() != self._pid:
            return
        try:
            self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        except (OSError, ValueError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.why_not = f"{type(error).__name__}: {error}"
        with suppress(OSError, ValueError):  # it tries once more to write what is left
            if self._file is not None:
                self._file.close()
        self.path = self._file = None


def _row(step: LiveStep) -> dict[str, Any]:
    return {name: getattr(step, name) for name in _STEP_KEYS}  # asdict takes ten times as long


def _header(gpus: tuple[LiveGpu, ...], total_steps: int | None) -> LiveHeader:
    rank, world = rank_and_world()
    first = gpus[0] if gpus else LiveGpu(0, None, None, None)
    from oomdoctor.redaction import without_secrets  # takes time to load

    return LiveHeader(
        pid=os.getpid(),
        host=platform.node(),
        rank=rank,
        world=world,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        gpu_name=first.gpu_name,
        gpu_uuid=first.gpu_uuid,
        total_bytes=first.total_bytes,
        command=without_secrets(sys.orig_argv),
        gpus=gpus,
        total_steps=total_steps,
    )


class LiveLine:
    """Shows readings on stderr."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._shown_at = clock, float("-inf")
        self._drawn = False

    def show(self, step: int, readings: Sequence[Reading]) -> None:
        """Show the readings of a step, unless others were shown just before."""
        moving = sys.stderr.isatty()
        now = self._clock()
        if not readings or now - self._shown_at < (_MOVING_S if moving else _STILL_S):
            return
        self._shown_at, self._drawn = now, moving
        text = line_of(step, readings)
        if moving:
            text = _ERASE + text[: shutil.get_terminal_size().columns - 1]
        _write(text if moving else text + "\n")

    def erase(self) -> None:
        """Remove the line, so that other text can be written."""
        if self._drawn:
            _write(_ERASE)
            self._drawn = False


def line_of(step: int, readings: Sequence[Reading]) -> str:
    """`step 120  GPU 0: 31.2 GiB, peak 40.1 GiB of 79.1 GiB (51%)`."""
    parts = [
        f"GPU {r.device}: {format_bytes(r.allocated_bytes)}, peak "
        f"{format_bytes(r.peak_allocated_bytes)} of {format_bytes(r.capacity_bytes)} "
        f"({format_percent(r.peak_allocated_bytes / max(1, r.capacity_bytes))})"
        for r in readings
    ]
    return "  ".join([f"step {step:,}", *parts])


def _write(text: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
