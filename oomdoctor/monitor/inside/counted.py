"""The memory of a process by the allocator's counters, for a training on a real GPU.

torch records a history of allocations beside it, in a ring that is only read if memory runs out. No
module gets a hook, no peak is reset, and the device is asked rarely, so that steps stay as fast as
they are.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from oomdoctor.monitor.inside import allocator_history
from oomdoctor.monitor.inside.ending import frames_here
from oomdoctor.monitor.inside.memory import DeviceMemory, counters_of
from oomdoctor.monitor.readings import device_facts
from oomdoctor.records.report.watch import StepPeaks

# The last allocations and frees: some steps of a large model, and about 100 MiB of host memory.
RING_ENTRIES = 100_000
_FIRST_STEPS = 10  # that are all counted; after them fast steps are counted from time to time
_STEP_INTERVAL_S = 0.1
_DEVICE_INTERVAL_S = 10.0  # between two questions to the driver, which may make it wait
_BACKWARD = ("torch/autograd/__init__.py", "torch/_tensor.py")


class CountedMemory(DeviceMemory):
    """Memory by torch's counters. It has what `TracedMemory` has."""

    without_gradients = False
    """No hooks see it."""
    stops_to_look = False
    past = None

    def __init__(self, *, every_step: bool) -> None:
        """With `every_step`, each step is counted, however fast they are."""
        super().__init__()
        self._every_step = every_step
        self._counted_at = 0.0
        self._facts: dict[int, dict[str, Any]] = {}
        self._asked_at = 0.0

    def begin(self) -> None:
        """Let torch record the ring, unless the script already records its history."""
        allocator_history.start(RING_ENTRIES)

    def read(self, step: int) -> None:
        """Ask the driver from time to time how much others use. Only the script's thread may."""
        import torch

        now = time.monotonic()
        if now - self._asked_at < _DEVICE_INTERVAL_S or torch.cuda.is_current_stream_capturing():
            return
        self._asked_at = now
        for device in _used():
            self._ask_outside(device)

    def end_step(self, step: int) -> None:
        """Keep the counters after a step; peaks are those since the start."""
        now = time.monotonic()
        is_soon = step > _FIRST_STEPS and now - self._counted_at < _STEP_INTERVAL_S
        if is_soon and not self._every_step:
            return
        self._counted_at = now
        ended: dict[int, StepPeaks] = {}
        for device, stats in _used().items():
            ended[device] = StepPeaks(step=step, **counters_of(device, stats))
            self._keep_step(device, ended[device])
        self.live.write({device: self._facts_of(device) for device in ended}, ended)

    def forget(self) -> None:
        """Nothing is remembered of a step but its memory."""

    def between_steps(self) -> None:
        """No hook knows the place in the training."""

    def place(self) -> dict[str, Any]:
        """Where the training is: in the backward pass if the script's thread waits for it."""
        waiting = frames_here(threading.main_thread().ident)
        here = threading.current_thread() is threading.main_thread()
        backward = [] if here else waiting
        called = any(frame["filename"].endswith(_BACKWARD) for frame in backward)
        return {
            "phase": "backward" if called else "unknown",
            "module": None,
            "backward_frames": backward if called else [],
        }

    def devices(self) -> list[dict[str, Any]]:
        """The devices on which this process has reserved memory."""
        return [self._record_of(device, self._facts_of(device)) for device in _used()]

    def _facts_of(self, device: int) -> dict[str, Any]:
        if device not in self._facts:
            self._facts[device] = device_facts(device)
        return self._facts[device]


def _used() -> dict[int, dict[str, Any]]:
    """The allocator's counters of the devices on which this process has ever reserved memory.

    No driver is asked.
    """
    import torch

    by_device = {}
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        if stats and stats["reserved_bytes"]["all"]["allocated"]:
            by_device[device] = stats
    return by_device
