"""Reads a device's memory, and the peaks of each step without spoiling those of the script.

torch has one peak for each device. Resetting it after each step would change what the script sees
in torch.cuda.max_memory_allocated(). So what was reset here is kept, and added again to what torch
says; a reset by the script itself works as ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oomdoctor.records.report.watch import LiveGpu

_ASK_DRIVER_S = 1.0  # between two questions to the driver, which may take a millisecond
_SERIES = ("allocated_bytes", "reserved_bytes")
# The functions of torch._C by which a script resets peaks, and those by which it reads them.
RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
_READS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")

Stats = dict[str, Any]
_raw: dict[str, Callable[..., Any]] = {}
_scripts: dict[int, dict[tuple[str, str], int]] = {}  # device -> its peaks before our last reset
_steps: dict[int, dict[str, int]] = {}  # device -> peaks of this step before a reset by the script


@dataclass(frozen=True, slots=True)
class Reading:
    """A device's memory after a step, in bytes; the peaks are those of the step.

    `capacity_bytes` is what this process could have at most: what it has reserved, and what the
    driver had left when it was last asked. `free_bytes` is None if it was not asked now.
    """

    device: int
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    free_bytes: int | None
    capacity_bytes: int


class Reader:
    """Reads the devices of this process, step by step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: dict[int, tuple[float, int, int]] = {}  # device -> when, free, capacity
        _keep_peaks_of_the_script()

    def begin(self) -> None:
        """The first step begins now: what was needed before is not counted to it."""
        import torch

        for device in range(torch.cuda.device_count()):
            stats = _stats(device)
            if stats:
                _begin_step(device, stats)

    def read(self) -> list[Reading]:
        """The devices on which this process has memory; the next step begins now."""
        import torch

        now = []
        for device in range(torch.cuda.device_count()):
            stats = _stats(device)
            if not stats or not stats["reserved_bytes"]["all"]["peak"]:
                continue
            now.append(self._reading(device, stats))
            _begin_step(device, stats)
        return now

    def _reading(self, device: int, stats: Stats) -> Reading:
        import torch

        allocated, reserved = (int(stats[name]["all"]["current"]) for name in _SERIES)
        earlier = _steps.get(device, {})
        peaks = {n: max(int(stats[n]["all"]["peak"]), earlier.get(n, 0)) for n in _SERIES}
        now = self._clock()
        asked = self._asked.get(device)
        free: int | None = None
        if asked is None or now - asked[0] >= _ASK_DRIVER_S:
            free = int(torch.cuda.mem_get_info(device)[0])
            asked = self._asked[device] = (now, free, free + reserved)
        return Reading(
            device=device,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            peak_allocated_bytes=peaks["allocated_bytes"],
            peak_reserved_bytes=peaks["reserved_bytes"],
            free_bytes=free,
            capacity_bytes=asked[2],
        )


def gpus() -> tuple[LiveGpu, ...]:
    """The devices that torch sees, the current one first. CUDA must be initialized."""
    import torch

    here = torch.cuda.current_device()
    indices = sorted(range(torch.cuda.device_count()), key=lambda index: index != here)
    return tuple(map(live_gpu, indices))


def live_gpu(index: int) -> LiveGpu:
    """A device as the live log describes it."""
    from oomdoctor.records.report.watch import LiveGpu

    facts = device_facts(index)
    return LiveGpu(index, facts["name"], facts["uuid"], facts["total_bytes"])


@cache
def device_facts(device: int) -> Mapping[str, Any]:
    """What the device is. `uuid` is spelled as the driver does; None where torch does not say."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    return {
        "name": properties.name,
        "uuid": None if uuid is None else f"GPU-{uuid}",
        "total_bytes": int(properties.total_memory),
        "capability": f"{properties.major}.{properties.minor}",
    }


def _stats(device: int) -> Stats:
    import torch

    read = _raw.get("_cuda_memoryStats", torch._C._cuda_memoryStats)
    try:
        stats: Stats = read(device)
    except RuntimeError:  # nothing was allocated on this device yet
        return {}
    return stats


def _begin_step(device: int, stats: Stats) -> None:
    """Reset the peaks of torch; what they were stays visible to the script."""
    kept = _scripts.setdefault(device, {})
    for name, pools in stats.items():
        if type(pools) is dict:  # others are plain counts
            for pool, values in pools.items():
                if type(values) is dict:
                    peak = values["peak"]
                    if peak > kept.get((name, pool), -1):
                        kept[name, pool] = peak
    _steps.pop(device, None)
    with suppress(RuntimeError):
        _raw["_cuda_resetPeakMemoryStats"](device)


def _keep_peaks_of_the_script() -> None:
    import torch

    if _raw:
        return
    for names, wrapped in ((RESETS, _resetting), (_READS, _reading)):
        for name in names:
            function = getattr(torch._C, name, None)
            if function is not None:
                _raw[name] = function
                setattr(torch._C, name, wrapped(function))


def _resetting(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def reset(device: int, *args: Any) -> Any:
        stats = _stats(device)
        if stats:
            peaks = _steps.setdefault(device, {})
            for name in _SERIES:
                peaks[name] = max(peaks.get(name, 0), int(stats[name]["all"]["peak"]))
        _scripts.pop(device, None)
        return function(device, *args)

    return reset


def _reading(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def read(device: int, *args: Any) -> Any:
        stats = function(device, *args)
        for (name, pool), peak in _scripts.get(device, {}).items():
            values = stats.get(name, {}).get(pool)
            if isinstance(values, dict) and "peak" in values:
                values["peak"] = max(values["peak"], peak)
        return stats

    return read
