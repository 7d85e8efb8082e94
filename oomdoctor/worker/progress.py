"""Where the worker is, in a file beside the reply, so that the parent can show it.

The same file tells the last phase of a worker that was killed.
"""

from __future__ import annotations

import os
from pathlib import Path


def phase_file(reply: Path) -> Path:
    """The file that names the phase of the worker that will write `reply`."""
    return reply.with_suffix(".phase")


class PhaseFile:
    """Writes the current phase; opened once so that a change of phase is one small write."""

    def __init__(self, path: Path | None) -> None:
        self._fd = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self.current = "init"

    def enter(self, phase: str) -> None:
        """Note that `phase` begins."""
        if phase == self.current:
            return
        self.current = phase
        if self._fd is not None:
            os.pwrite(self._fd, f"{phase:<16}\n".encode(), 0)
