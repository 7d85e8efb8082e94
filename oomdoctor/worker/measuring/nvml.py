"""Used bytes of one GPU from the driver, before and beside a CUDA context.

`torch.cuda.mem_get_info` needs a context, which is part of what is to be measured, and the worker
may not need packages the user's environment lacks: three calls of the driver's own library by
ctypes are enough. Source: NVML API reference, nvmlDeviceGetMemoryInfo.
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
    """Bytes in use on the GPU (or MIG slice) with this UUID, by all processes; None if unknown."""
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
