"""Where the worker is, in a file beside the reply, so that the parent can show it.

The same file tells the last phase of a worker that was killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def phase_file(reply: Path) -> Path:
    """The file that names the phase of the worker that will write `reply`."""
    return reply.with_suffix(".phase")


class PhaseFile:
    """Writes the current phase; opened once so that a change of phase is one small write."""

    def __init__(self, path: Path | None) -> None:
        self._fd = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self.current = "init"
        self.step_phase = "init"  # within a training step, also while it is timed

    def training_phase(self) -> str:
        """The phase in the field's words: what is being timed is a step like any other."""
        return self.step_phase if self.current == "timing" else self.current

    def enter(self, phase: str) -> None:
        """Note that `phase` begins."""
        if phase == self.current:
            return
        self.current = phase
        if self._fd is not None:
            os.pwrite(self._fd, f"{phase:<16}\n".encode(), 0)


class Marks:
    """The phase marks of a step go to whoever listens: the meter, or the stopwatch.

    The last one is kept in the progress file's object, so that a failure while timing has a phase.
    """

    def __init__(self, progress: PhaseFile) -> None:
        self._progress = progress
        self._listener: Callable[[str], None] = lambda phase: None

    def listen(self, listener: Callable[[str], None]) -> None:
        self._listener = listener

    def __call__(self, phase: str) -> None:
        self._progress.step_phase = phase
        self._listener(phase)
