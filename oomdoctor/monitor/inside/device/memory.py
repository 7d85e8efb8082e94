"""What a watch asks of its memory: `traced` on an emulated GPU, `counted` on a real one.

torch's peaks of a device, whatever the script resets.

Scripts reset them to see the peak of a part: transformers' memory metrics do, and torchtune's. What
they were before is kept here.
"""

from __future__ import annotations

from contextlib import suppress
from functools import wraps
from typing import Any, Protocol

from oomdoctor.monitor.inside.ending import StepMemory
from oomdoctor.monitor.inside.live import Live

# Functions of torch._C that reset the peaks of the device in their first argument.
_RESETTING = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
# device -> bytes allocated and reserved at the most, before the last reset
_before: dict[int, tuple[int, int]] = {}


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


def keep_peaks() -> None:
    """Keep peaks from now on, before they are reset."""
    import torch

    for name in _RESETTING:
        reset = getattr(torch._C, name, None)
        if reset is not None:
            setattr(torch._C, name, _keeping(reset))


def peaks_of(device: int, stats: Any = None) -> tuple[int, int]:
    """Bytes allocated and reserved at the most since the start of the process.

    `stats` are the nested statistics of the device, if they are known already.
    """
    import torch

    stats = stats or torch.cuda.memory_stats_as_nested_dict(device)
    now = stats["allocated_bytes"]["all"]["peak"], stats["reserved_bytes"]["all"]["peak"]
    before = _before.get(device, (0, 0))
    return max(now[0], before[0]), max(now[1], before[1])


def _keeping(reset: Any) -> Any:
    @wraps(reset)
    def kept(device: int, *args: Any) -> Any:
        with suppress(Exception):  # the script must not notice
            _before[device] = peaks_of(device)
        return reset(device, *args)

    return kept
