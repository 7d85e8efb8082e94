"""A line on stderr with the memory of now: it moves on a terminal; in a log, one comes a minute."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from oomdoctor.monitor.readings import Reading
from oomdoctor.units import format_bytes, format_percent

_MOVING_S, _STILL_S = 0.5, 60.0
_ERASE = "\r\x1b[2K"


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
