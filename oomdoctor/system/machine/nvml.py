"""The GPUs as the NVIDIA driver reports them, through NVML and without a CUDA context.

What the driver does not report is None. In MIG mode the instances are listed instead of the GPU,
because CUDA can only use instances.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oomdoctor.records.job.machine import Gpu, GpuProcess
from oomdoctor.system.environment import is_emulating
from oomdoctor.system.machine.limits import total_memory

_LOG = logging.getLogger(__name__)
# What the driver's kernel module makes: on Linux, under WSL, on Jetson boards.
_KERNEL_DRIVER = ("dev/nvidia*", "proc/driver/nvidia", "dev/dxg", "dev/nvhost*", "dev/nvmap")


def open_nvml() -> Any:
    """The initialized NVML binding; the caller must call `nvmlShutdown`.

    Raises:
        ImportError: nvidia-ml-py is not installed.
        pynvml.NVMLError: there is no driver, or it does not answer.
    """
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def may_have_gpu(root: Path = Path("/")) -> bool:
    """Whether there is a device file of an NVIDIA driver; loads nothing, so `explain` can ask."""
    return any(any(root.glob(name)) for name in _KERNEL_DRIVER)


def list_gpus() -> tuple[Gpu, ...]:
    """All GPUs and MIG instances that the driver shows this process; empty without a driver."""
    with _opened() as (nvml, _):
        if nvml is None:
            return ()
        gpus: list[Gpu] = []
        for index in range(_ask(nvml, "nvmlDeviceGetCount") or 0):
            handle = _ask(nvml, "nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                gpus += _gpus_of(nvml, index, handle)
        return tuple(gpus)


def driver_version() -> str | None:
    """The version of the NVIDIA driver, such as `570.124.06`; None without one."""
    with _opened() as (nvml, _):
        return None if nvml is None else _text(_ask(nvml, "nvmlSystemGetDriverVersion"))


def why_no_driver() -> str | None:
    """Why NVML does not work, as half a sentence; None if it does."""
    with _opened() as (_, reason):
        return reason


def process_name(pid: int) -> str | None:
    """The command of a process; None if it has ended or is in another pid namespace."""
    try:
        return Path("/proc", str(pid), "comm").read_text(errors="replace").strip() or None
    except OSError:
        return None


def is_emulated(name: str, root: Path = Path("/")) -> bool:
    """Whether a GPU only pretends to be one: by its name, or without a driver in the kernel.

    NVML answers for an emulated GPU, but a real one cannot work without the kernel's devices. Where
    this process runs on emulated GPUs, as under `oomdoctor run --emulate`, all of them are.
    """
    return is_emulating() or "emulat" in name.lower() or not may_have_gpu(root)


@contextmanager
def _opened() -> Iterator[tuple[Any | None, str | None]]:
    """The binding for a while, or None and why it does not work."""
    try:
        nvml = open_nvml()
    except ImportError:
        yield None, "the package nvidia-ml-py is not installed"
        return
    except Exception as error:  # noqa: BLE001 - pynvml's error class exists only with pynvml
        yield None, f"the NVIDIA driver does not answer ({error})"
        return
    try:
        yield nvml, None
    finally:
        _ask(nvml, "nvmlShutdown")


def _ask(nvml: Any, function: str, *args: Any) -> Any:
    """The driver's answer; None if it has none (not supported, no permission, too old)."""
    try:
        return getattr(nvml, function)(*args)
    except nvml.NVMLError as error:
        _LOG.debug("%s%s: %s", function, args[1:], error)
        return None


def _gpus_of(nvml: Any, index: int, handle: Any) -> list[Gpu]:
    pair = _ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    capability = f"{pair[0]}.{pair[1]}" if pair else None
    mode = _ask(nvml, "nvmlDeviceGetMigMode", handle)
    if not mode or not mode[0]:
        gpu = _gpu(nvml, index, handle, capability)
        return [gpu] if gpu else []
    slots = range(_ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0)
    handles = [_ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, slot) for slot in slots]
    instances = [_gpu(nvml, index, h, capability) for h in handles if h is not None]
    if not instances:
        _LOG.warning("GPU %d is in MIG mode without an instance, so nothing can run on it", index)
    return [gpu for gpu in instances if gpu]


def _gpu(nvml: Any, index: int, handle: Any, capability: str | None) -> Gpu | None:
    uuid = _text(_ask(nvml, "nvmlDeviceGetUUID", handle))
    if uuid is None:  # without a UUID, no process can be pinned to this device
        _LOG.warning("GPU %d has no UUID and is ignored", index)
        return None
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    name = _text(_ask(nvml, "nvmlDeviceGetName", handle)) or "unnamed GPU"
    return Gpu(
        index=index,
        uuid=uuid,
        name=name,
        # An integrated GPU (GB10, Jetson) uses the host's memory.
        total_bytes=int(memory.total) if memory else total_memory(),
        free_bytes=int(memory.free) if memory else None,
        compute_capability=capability,
        processes=_processes(nvml, handle),
        emulated=is_emulated(name),
    )


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    used: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        for process in _ask(nvml, f"nvmlDeviceGet{kind}RunningProcesses", handle) or ():
            # A process with both kinds of context is reported twice, with the same number.
            used[process.pid] = used.get(process.pid) or process.usedGpuMemory
    return tuple(GpuProcess(pid, process_name(pid), size) for pid, size in sorted(used.items()))


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
