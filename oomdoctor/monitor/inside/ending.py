"""When the training is stopped: after a number of steps, or once memory repeats."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MOST_TEXT = 4000
_MOST_FRAMES = 60


@dataclass(frozen=True)
class StepMemory:
    """The memory of one optimizer step of one device: its peaks, and what it left."""

    step: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    allocated_bytes: int
    reserved_bytes: int

    def repeats(self, before: StepMemory) -> bool:
        """Whether this step needed what the one before needed, and left what that left."""
        return (
            self.peak_allocated_bytes == before.peak_allocated_bytes
            and self.peak_reserved_bytes == before.peak_reserved_bytes
            and self.allocated_bytes == before.allocated_bytes
            and self.reserved_bytes == before.reserved_bytes
        )


def wants_to_stop(asked: Any, step: int, devices: list[list[StepMemory]]) -> str | None:
    """Why this process could stop now: "steps" or "steady"; None if it goes on.

    `asked` is what the user chose, `devices` the steps so far of each device.
    """
    if asked == "all":
        return None
    if isinstance(asked, int):
        return "steps" if step >= asked else None
    steady = devices and all(
        len(steps) >= 2 and steps[-1].step == step and steps[-1].repeats(steps[-2])
        for steps in devices
    )
    return "steady" if steady else None


def on_out_of_memory(act: Callable[[int, int, int, int], None]) -> None:
    """Call `act(device, requested, total, free)` when a request fails, before it is raised."""
    import torch

    torch._C._cuda_attach_out_of_memory_observer(act)


def last_exception() -> dict[str, Any] | None:
    """The exception that ended the program, as the interpreter remembers it; None without one."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:
        return None
    return {
        "type": type(error).__name__,
        "message": str(error)[:_MOST_TEXT],
        "frames": frames_of(error.__traceback__),
    }


def frames_of(trace: Any) -> list[dict[str, Any]]:
    """The frames of a traceback, innermost first."""
    found = traceback.extract_tb(trace)
    return [
        {"filename": one.filename, "line": one.lineno, "name": one.name}
        for one in reversed(found[-_MOST_FRAMES:])
    ]


def frames_here(thread: int | None = None) -> list[dict[str, Any]]:
    """The frames of a thread now, innermost first; of this thread if none is named."""
    frame = sys._current_frames().get(thread) if thread is not None else sys._getframe(1)
    found = traceback.extract_stack(frame)
    return [
        {"filename": one.filename, "line": one.lineno, "name": one.name}
        for one in reversed(found[-_MOST_FRAMES:])
    ]


def script_file() -> str | None:
    """The file of the script that runs, which may lie among the installed packages."""
    return getattr(sys.modules.get("__main__"), "__file__", None)
