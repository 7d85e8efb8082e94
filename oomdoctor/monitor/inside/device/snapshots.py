"""The snapshot that is written when memory runs out, before the error is raised."""

from __future__ import annotations

import os
import time
from pathlib import Path

_ALWAYS = 10  # snapshots of one process that are written whatever they cost
_SHARE = 20  # after that, the script goes on for so many times as long as they took


class Snapshots:
    """Writes one file for each device of this process; a later failure replaces an earlier one.

    A script may catch the error and try again, many times.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0
        self._took_s = self._ended_at = 0.0

    def write(self, device: int) -> str | None:
        """The name of the file with all that torch knows now; None if it is too soon.

        Raises:
            OSError: the disk is full.
        """
        import torch

        began = time.monotonic()
        if self._written >= _ALWAYS and began - self._ended_at < _SHARE * self._took_s:
            return None
        name = f"snapshot-{os.getpid()}-{device}.pickle"
        beside = self._folder / f".{name}"
        try:
            torch.cuda.memory._dump_snapshot(str(beside))
            beside.replace(self._folder / name)
        finally:
            beside.unlink(missing_ok=True)
        self._written += 1
        self._ended_at = time.monotonic()
        self._took_s = self._ended_at - began
        return name
