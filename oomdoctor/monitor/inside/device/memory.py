"""What a watch asks of its memory: `traced` on an emulated GPU, `counted` on a real one."""

from __future__ import annotations

from typing import Any, Protocol

from oomdoctor.monitor.inside.ending import StepMemory
from oomdoctor.monitor.inside.live import Live


class Memory(Protocol):
    """The GPU memory of this process."""

    stops_to_look: bool
    """Whether reading it takes the time of the training, so that a record follows at once."""
    live: Live | None
    """The log for `oomdoctor watch`, if there is one."""

    def begin(self) -> None:
        """Start to look. CUDA has just been initialized."""

    def read(self, step: int) -> None:
        """Take into account what happened since the last call."""

    def end_step(self, step: int) -> None:
        """Keep the memory of an optimizer step that has ended, after `read`."""

    def forget(self) -> None:
        """Forget where the training was; the record has been written."""

    def between_steps(self) -> None:
        """An optimizer step has ended, and nothing is known of what follows."""

    def steps(self) -> list[list[StepMemory]]:
        """The steps so far of each device."""

    def place(self) -> dict[str, Any]:
        """Where the training is now: `phase`, `module` and `backward_frames`."""

    def devices(self) -> list[dict[str, Any]]:
        """The devices that were used, as the record has them."""


def keep_step(steps: list[StepMemory], one: StepMemory, most: int = 200) -> None:
    """Add a step; of many the first and the last ones are kept."""
    steps.append(one)
    if len(steps) > most:
        del steps[most // 2]
