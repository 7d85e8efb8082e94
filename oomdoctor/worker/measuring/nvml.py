"""What the driver says about one GPU without a CUDA context: its memory, and who computes on it.

`torch.cuda.mem_get_info` needs a context, whose size is part of the measurement. The worker must
not need packages that the user's environment does not have, so it calls the driver's library
through ctypes. Source: NVML API reference, nvmlDeviceGetMemoryInfo and
nvmlDeviceGetProcessUtilization.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from oomdoctor.system.environment import set_variables, variable

_MOST_PROCESSES = 256


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class _Utilization(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("unix_us", ctypes.c_ulonglong),
        ("sm_percent", ctypes.c_uint),
        ("memory_percent", ctypes.c_uint),
        ("encoder_percent", ctypes.c_uint),
        ("decoder_percent", ctypes.c_uint),
    ]


def used_bytes(uuid: str | None) -> int | None:
    """Bytes that all processes use on the GPU (or MIG slice) with this UUID; None if unknown."""
    with _device(uuid) as (nvml, handle):
        memory = _Memory()
        if nvml is None or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
            return None
        return int(memory.used)


def foreign_utilization(uuid: str | None, since_us: int) -> float | None:
    """The share of the time since then in which other processes used the GPU; None if unknown.

    `since_us` is in microseconds of the system's clock. The driver does not say it for MIG slices.
    In a container it may number processes differently; then ours is not found, and nothing is
    known.
    """
    with _device(uuid) as (nvml, handle):
        if nvml is None or not hasattr(nvml, "nvmlDeviceGetProcessUtilization"):
            return None
        samples = (_Utilization * _MOST_PROCESSES)()
        count = ctypes.c_uint(_MOST_PROCESSES)
        since = ctypes.c_ulonglong(since_us)
        code = nvml.nvmlDeviceGetProcessUtilization(handle, samples, ctypes.byref(count), since)
        if code != 0:
            return None
        return foreign_share([(sample.pid, sample.sm_percent) for sample in samples[: count.value]])


def number_devices() -> None:
    """Replace UUIDs in CUDA_VISIBLE_DEVICES by the driver's numbers, which DeepSpeed expects.

    CUDA has read the variable before, so this changes nothing for torch.
    """
    names = (variable("CUDA_VISIBLE_DEVICES") or "").split(",")
    if names == [""] or all(name.isdigit() for name in names):
        return
    numbers = [_number_of(name) for name in names]
    # Without the variable, DeepSpeed takes torch's numbers.
    value = None if None in numbers else ",".join(map(str, numbers))
    set_variables({"CUDA_VISIBLE_DEVICES": value})


def _number_of(uuid: str) -> int | None:
    with _device(uuid) as (nvml, handle):
        number = ctypes.c_uint()
        if nvml is None or nvml.nvmlDeviceGetIndex(handle, ctypes.byref(number)) != 0:
            return None
        return number.value


def foreign_share(samples: list[tuple[int, int]]) -> float | None:
    """The share of the others in (pid, percent of the time); None if this process is not listed."""
    own = os.getpid()
    if not any(pid == own for pid, _ in samples):
        return None
    most: dict[int, int] = {}
    for pid, percent in samples:
        most[pid] = max(percent, most.get(pid, 0))
    return min(1.0, sum(percent for pid, percent in most.items() if pid != own) / 100)


@contextmanager
def _device(uuid: str | None) -> Iterator[tuple[ctypes.CDLL, ctypes.c_void_p] | tuple[None, None]]:
    """The driver's library and its handle of the GPU; (None, None) if there is none."""
    if not uuid or (nvml := _library()) is None or nvml.nvmlInit_v2() != 0:
        yield None, None
        return
    try:
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != 0:
            yield None, None
        else:
            yield nvml, handle
    finally:
        nvml.nvmlShutdown()


def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
