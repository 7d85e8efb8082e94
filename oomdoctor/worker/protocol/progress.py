"""The worker's current phase, in a file next to the reply, so that the parent can show it.

If a worker is killed, the file still has its last phase.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def phase_file(reply: Path) -> Path:
    """The path of the phase file of the worker that will write `reply`."""
    return reply.with_suffix(".phase")


class PhaseFile:
    """Writes the current phase. The file is opened once, so a change is one small write."""

    def __init__(self, path: Path | None) -> None:
        self._fd = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self.current = "init"
        self.step_phase = "init"  # the phase of the training step, also while it is timed

    def training_phase(self) -> str:
        """The phase in the field's words; a timed step has phases like any other."""
        return self.step_phase if self.current == "timing" else self.current

    def enter(self, phase: str) -> None:
        """Begin `phase`."""
        if phase == self.current:
            return
        self.current = phase
        if self._fd is not None:
            os.pwrite(self._fd, f"{phase:<16}\n".encode(), 0)


class Marks:
    """Passes the phases of a step to a listener: the meter, or the stopwatch.

    The `PhaseFile` keeps the last one, so that a failure during timing has a phase.
    """

    def __init__(self, progress: PhaseFile) -> None:
        self._progress = progress
        self._listener: Callable[[str], None] = lambda phase: None

    def listen(self, listener: Callable[[str], None]) -> None:
        """Send the phases to this listener from now on."""
        self._listener = listener

    def __call__(self, phase: str) -> None:
        self._progress.step_phase = phase
        self._listener(phase)
