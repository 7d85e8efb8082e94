"""The memory of a process by torch's counters: peaks, whatever the script resets, and the live log.

Scripts reset the peaks to see those of a part: transformers' memory metrics do, and torchtune's.
What they were before is kept here.

In a training on a real GPU, torch records a history of allocations beside the counters, in a ring
that is only read if memory runs out. No module gets a hook, no peak is reset, and the device is
asked rarely, so that steps stay as fast as they are.

The live log is that of a process on a real GPU, so that `oomdoctor watch` sees its training. Its
peaks are those since the start: if torch's own were reset, the script would see it.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomdoctor.monitor.inside import allocator_history
from oomdoctor.monitor.inside.ending import frames_here
from oomdoctor.monitor.inside.process_facts import beside_torch_bytes, outside_bytes
from oomdoctor.monitor.readings import RESETS, device_facts, live_gpu
from oomdoctor.records.report.watch import LiveStep, StepPeaks

if TYPE_CHECKING:
    from oomdoctor.monitor.log import LiveLog

_MOST_STEPS = 200  # of a device; of more, the first and the last ones are kept
# device -> bytes allocated and reserved at the most, before the last reset
_before: dict[int, tuple[int, int]] = {}
# The last allocations and frees: some steps of a large model, and about 100 MiB of host memory.
_RING_ENTRIES = 100_000
_FIRST_STEPS = 10  # that are all counted; after them fast steps are counted from time to time
_STEP_INTERVAL_S = 0.1
_DEVICE_INTERVAL_S = 10.0  # between two questions to the driver, which may make it wait
_BACKWARD = ("torch/autograd/__init__.py", "torch/_tensor.py")


def keep_peaks() -> None:
    """Keep peaks from now on, before they are reset."""
    import torch

    for name in RESETS:
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


def counters_of(device: int, stats: Any) -> dict[str, int]:
    """The peaks of `peaks_of`, and the bytes that are allocated and reserved now."""
    allocated, reserved = peaks_of(device, stats)
    return {
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "allocated_bytes": stats["allocated_bytes"]["all"]["current"],
        "reserved_bytes": stats["reserved_bytes"]["all"]["current"],
    }


def _keeping(reset: Any) -> Any:
    @wraps(reset)
    def kept(device: int, *args: Any) -> Any:
        with suppress(Exception):  # the script must not notice
            _before[device] = peaks_of(device)
        return reset(device, *args)

    return kept


class DeviceMemory:
    """What is kept of each device, by a trace or not: its steps, and how much others use of it."""

    def __init__(self) -> None:
        self._steps: dict[int, list[StepPeaks]] = {}
        self._outside: dict[int, int] = {}
        self._beside: dict[int, int] = {}
        self.live = Live()

    def steps(self) -> list[list[StepPeaks]]:
        """The steps so far of each device."""
        return list(self._steps.values())

    def _keep_step(self, device: int, peaks: StepPeaks) -> None:
        steps = self._steps.setdefault(device, [])
        steps.append(peaks)
        if len(steps) > _MOST_STEPS:
            del steps[_MOST_STEPS // 2]

    def _ask_outside(self, device: int) -> None:
        self._outside[device] = max(self._outside.get(device, 0), outside_bytes(device))
        beside = beside_torch_bytes(device)
        if beside is not None:
            self._beside[device] = max(self._beside.get(device, 0), beside)

    def _record_of(self, device: int, **more: Any) -> dict[str, Any]:
        """What the record says of a device, without a trace; `more` is what a trace knows."""
        import torch

        stats = torch.cuda.memory_stats_as_nested_dict(device)
        return {
            "device": device,
            **device_facts(device),
            **counters_of(device, stats),
            "retries": stats["num_alloc_retries"],
            "outside_bytes": self._outside.get(device, 0),
            "beside_torch_bytes": self._beside.get(device),
            "peak": None,
            "steps": list(map(asdict, self._steps.get(device, []))),
            "curve": [],
            "events_are_whole": False,
            **more,
        }


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
        self._asked_at = 0.0

    def begin(self) -> None:
        """Let torch record the ring, unless the script already records its history."""
        allocator_history.start(_RING_ENTRIES)

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
        self.live.write(ended)

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
        return [self._record_of(device) for device in _used()]


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


class Live:
    """Starts a log at the first step, when the rank and the devices are known."""

    def __init__(self) -> None:
        self._log: LiveLog | None = None
        self._inode: int | None = None

    def write(self, steps: dict[int, StepPeaks]) -> None:
        """Write the memory after a step, by the index of the device."""
        from oomdoctor.monitor.log import LiveLog

        if self._log is None:
            self._log = LiveLog(tuple(map(live_gpu, sorted(steps))))
            if self._log.path is not None:
                self._inode = self._log.path.stat().st_ino
        for device, step in steps.items():
            self._log.write(LiveStep(**asdict(step), time_s=self._log.elapsed_s(), device=device))

    def note_failure(self, step: int, requested: int) -> None:
        """Write that a request failed."""
        if self._log is not None:
            self._log.note("oom", step, f"tried to allocate {requested} bytes")

    def close(self, step: int) -> None:
        """Write that the process ends."""
        if self._log is not None:
            self._log.close(step)

    def path(self) -> Path | None:
        """The file, as long as no callback of the script has replaced it by its own log."""
        path = None if self._log is None else self._log.path
        with suppress(OSError):
            if path is not None and path.stat().st_ino == self._inode:
                return path
        return None
