"""torch's peaks of a device, whatever the script resets.

Scripts reset them to see the peak of a part: transformers' memory metrics do, and torchtune's. What
they were before is kept here.
"""

from __future__ import annotations

from contextlib import suppress
from functools import wraps
from typing import Any

# Functions of torch._C that reset the peaks of the device in their first argument.
_RESETTING = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
# device -> bytes allocated and reserved at the most, before the last reset
_before: dict[int, tuple[int, int]] = {}


def start() -> None:
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
