"""The used memory of one GPU from the driver, without a CUDA context.

`torch.cuda.mem_get_info` needs a context, whose size is part of the measurement. The worker must
not need packages that the user's environment does not have, so it makes three calls to the driver's
library through ctypes. Source: NVML API reference, nvmlDeviceGetMemoryInfo.
"""

from __future__ import annotations

import ctypes


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def used_bytes(uuid: str | None) -> int | None:
    """Bytes that all processes use on the GPU (or MIG slice) with this UUID; None if unknown."""
    if not uuid:
        return None
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != 0:
            return None
        memory = _Memory()
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
            return None
        return int(memory.used)
    finally:
        nvml.nvmlShutdown()
