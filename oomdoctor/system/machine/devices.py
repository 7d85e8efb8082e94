"""Chooses the device that a survey runs on, and describes the machine for the report.

A device is chosen by UUID: NVML counts by PCI bus and ignores CUDA_VISIBLE_DEVICES, but CUDA counts
the fastest first. If CUDA's order is unknown, the user has to choose; we never guess.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.errors import OomDoctorError, machine_error, usage_error
from oomdoctor.records.job.machine import DeviceType, Gpu, Machine
from oomdoctor.system.environment import slurm, variable
from oomdoctor.system.machine.limits import available_memory, total_memory
from oomdoctor.system.machine.nvml import driver_version, why_no_driver
from oomdoctor.units import format_bytes


@dataclass(frozen=True, slots=True)
class Device:
    """The chosen device; `gpu` is None for the CPU.

    A training on several GPUs also has `others`. On the CPU it has `ranks`, which share the
    memory.
    """

    type: DeviceType
    gpu: Gpu | None
    others: tuple[Gpu, ...] = ()
    ranks: int = 1

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs of the device; none for the CPU."""
        return (self.gpu, *self.others) if self.gpu is not None else ()

    @property
    def count(self) -> int:
        """The GPUs, or the ranks on the CPU."""
        return len(self.gpus) or self.ranks


def choose_device(choice: str, gpus: tuple[Gpu, ...]) -> Device:
    """The device for "auto", "cpu", "cuda", "cuda:N" or a (shortened) UUID of `list_gpus()`.

    "auto" and "cuda" take the first GPU that CUDA_VISIBLE_DEVICES allows. If GPUs differ and that
    variable is not set, they take the highest compute capability, then the most memory. "auto"
    falls back to the CPU. "cuda:N" counts as CUDA does in this environment. A UUID is used even if
    CUDA_VISIBLE_DEVICES hides it, because the user named it.

    Raises:
        OomDoctorError: the name is unknown or ambiguous (exit 2); there is no usable GPU
            (exit 5).
    """
    word = choice.strip().lower()
    if word == "cpu":
        return Device("cpu", None)
    if word.startswith(("gpu-", "mig-")):
        return Device("cuda", _by_uuid(choice.strip(), gpus))
    number = word.removeprefix("cuda:")
    if word not in ("auto", "cuda") and not (number != word and _is_index(number)):
        raise usage_error(
            "unknown_device",
            f"{choice!r} is not a device",
            "write auto, cpu, cuda, cuda:N or a UUID; for UUIDs run `oomdoctor env`",
        )
    allowed = _visible(gpus)
    if word == "auto":
        return Device("cuda", allowed[0]) if allowed else Device("cpu", None)
    if not allowed:
        raise _no_gpu(gpus)
    if word == "cuda":
        return Device("cuda", allowed[0])
    if not _cuda_order_is_known(gpus) and variable("CUDA_VISIBLE_DEVICES") is None:
        raise _ambiguous(word, gpus)
    if int(number) >= len(allowed):
        raise usage_error(
            "unknown_device",
            f"there is no {word}: CUDA sees {_counted(allowed)}",
            _choices(allowed),
        )
    return Device("cuda", allowed[int(number)])


def choose_devices(choice: str, gpus: tuple[Gpu, ...], count: int) -> Device:
    """The device for a training on `count` GPUs: "auto", "cpu" or "cuda".

    Free GPUs come first, and those of one kind. "auto" takes the CPU only where there is no GPU.

    Raises:
        OomDoctorError: as `choose_device`, or there are too few GPUs (code "too_few_gpus", exit 5).
    """
    first = choose_device(choice, gpus)
    if count == 1:
        return first
    if first.gpu is None:
        return Device("cpu", None, ranks=count)
    allowed = _visible(gpus)
    kinds = [(gpu.name, gpu.total_bytes) for gpu in allowed]
    # The most common kind first, then those that nobody uses; otherwise as CUDA numbers them.
    order = sorted(
        range(len(allowed)),
        key=lambda i: (kinds.count(kinds[i]) < count, bool(allowed[i].processes), i),
    )
    if len(order) < count:
        raise _too_few(count, allowed, gpus)
    chosen = [allowed[i] for i in sorted(order[:count])]
    return Device("cuda", chosen[0], tuple(chosen[1:]))


def describe(device: Device, versions: Mapping[str, str | None]) -> Machine:
    """The machine as the report shows it, with the other processes that hold GPU memory.

    An emulated GPU has no driver.
    """
    gpu, memory = device.gpu, total_memory()
    return Machine(
        device=device.type,
        gpu_name=gpu.name if gpu else None,
        gpu_uuid=gpu.uuid if gpu else None,
        total_bytes=gpu.total_bytes if gpu else memory,
        compute_capability=gpu.compute_capability if gpu else None,
        driver_version=driver_version() if gpu and not gpu.emulated else None,
        cpu_name=cpu_name(),
        cpu_count=len(os.sched_getaffinity(0)),
        memory_bytes=memory,
        memory_available_bytes=available_memory(),
        hostname=platform.node(),
        slurm_job_id=slurm().job_id,
        other_processes=tuple(
            process
            for each in device.gpus
            for process in each.processes
            if process.pid != os.getpid()
        ),
        versions=dict(versions),
        emulated=gpu.emulated if gpu else False,
        gpus=device.count,
    )


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """The processor's name; None if the kernel does not give it, as on most ARM machines."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None) or None


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _visible(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs in the order CUDA numbers them for this environment.

    The rules of CUDA_VISIBLE_DEVICES (CUDA C++ Programming Guide, environment variables): the list
    ends at the first entry that is not a device, and a repeated entry makes it empty.
    """
    value = variable("CUDA_VISIBLE_DEVICES")
    if value is None:
        return gpus if _cuda_order_is_known(gpus) else tuple(sorted(gpus, key=_slowness))
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in value.split(",")):
        if _is_index(entry) and not _cuda_order_is_known(gpus):
            raise _ambiguous(f"CUDA_VISIBLE_DEVICES={value}", gpus)
        numbered = _is_index(entry)
        matching = gpus[int(entry) :][:1] if numbered else _matching(entry, gpus)
        if len(matching) != 1:
            break
        if matching[0] in chosen:
            return ()
        chosen += matching
    return tuple(chosen)


def _cuda_order_is_known(gpus: tuple[Gpu, ...]) -> bool:
    """Whether CUDA and NVML number alike: equal GPUs or numbering by PCI bus, and no MIG."""
    if len(gpus) < 2:
        return True
    if any(gpu.uuid.startswith("MIG-") for gpu in gpus):
        return False
    by_bus = variable("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return by_bus or len({(gpu.name, gpu.total_bytes) for gpu in gpus}) == 1


def _slowness(gpu: Gpu) -> tuple[tuple[int, ...], int, int]:
    capability = tuple(-int(part) for part in (gpu.compute_capability or "0").split("."))
    return capability, -gpu.total_bytes, gpu.index


def _matching(uuid: str, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs whose UUID starts with this text; CUDA also accepts shortened UUIDs."""
    if not uuid.lower().startswith(("gpu-", "mig-")):
        return ()
    return tuple(gpu for gpu in gpus if gpu.uuid.lower().startswith(uuid.lower()))


def _by_uuid(uuid: str, gpus: tuple[Gpu, ...]) -> Gpu:
    if not gpus:
        raise _no_gpu(gpus)
    matching = _matching(uuid, gpus)
    if len(matching) != 1:
        count = f"{len(matching)} GPUs have" if matching else "no GPU has"
        what = f"{count} a UUID that starts with {uuid}"
        raise usage_error("unknown_device", what, _choices(matching or gpus))
    return matching[0]


def _ambiguous(what: str, gpus: tuple[Gpu, ...]) -> OomDoctorError:
    sliced = any(gpu.uuid.startswith("MIG-") for gpu in gpus)
    if sliced:
        reason, remedy = "a GPU is split into MIG instances, which have no fixed numbers", ""
    else:
        reason = "the GPUs differ, and only CUDA knows which one it ranks fastest"
        remedy = "; or number them by PCI bus with CUDA_DEVICE_ORDER=PCI_BUS_ID"
    hint = _choices(gpus) + remedy
    return usage_error("ambiguous_device", f"{what} is ambiguous: {reason}", hint)


def _no_gpu(gpus: tuple[Gpu, ...]) -> OomDoctorError:
    if gpus:
        value = variable("CUDA_VISIBLE_DEVICES")
        return machine_error(
            "no_gpu",
            f"CUDA_VISIBLE_DEVICES={value!r} hides all GPUs ({len(gpus)} here)",
            f"unset CUDA_VISIBLE_DEVICES, or name a GPU: {_choices(gpus)}",
        )
    reason = why_no_driver() or "the NVIDIA driver reports no usable GPU"
    hint = "measure on the CPU with --device cpu"
    if slurm().on_login_node:
        hint = f"on this Slurm login node, run srun --gres=gpu:1 oomdoctor probe MODEL; or {hint}"
    elif "nvidia-ml-py" in reason:
        hint = f"pip install nvidia-ml-py; or {hint}"
    else:
        hint = f"check `nvidia-smi`; or {hint}"
    return machine_error("no_gpu", f"no GPU to run on: {reason}", hint)


def _too_few(count: int, allowed: tuple[Gpu, ...], gpus: tuple[Gpu, ...]) -> OomDoctorError:
    """The error; the caller adds the line to type, because it knows the request."""
    seen = f"CUDA_VISIBLE_DEVICES shows {_counted(allowed)}"
    here = f"this machine has {_counted(gpus)}" if len(allowed) == len(gpus) else seen
    what = f"{count} GPUs were asked for, and {here}"
    return machine_error("too_few_gpus", what, f"use --gpus {len(allowed)}")


def _counted(gpus: tuple[Gpu, ...]) -> str:
    return f"{len(gpus)} GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"


def _choices(gpus: tuple[Gpu, ...]) -> str:
    return " or ".join(
        f"--device {gpu.uuid} ({gpu.name}, {format_bytes(gpu.total_bytes)})" for gpu in gpus
    )
