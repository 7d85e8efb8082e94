"""When the training is stopped: after a number of steps, or once memory repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
