"""The real GPUs of a watched command: whether there are any, and what they are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from oomdoctor.commands.run.rank_records import Process
from oomdoctor.errors import OomDoctorError, machine_error
from oomdoctor.records.job.machine import Gpu, Machine
from oomdoctor.records.report.run import RunDevice
from oomdoctor.system.environment import slurm
from oomdoctor.system.machine.devices import Device, describe
from oomdoctor.system.machine.nvml import list_gpus, may_have_gpu, why_no_driver

_ANOTHER_DRIVER = Path("/dev/kfd")  # AMD's: torch has the same allocator there


def gpus_here(command: Sequence[str]) -> tuple[Gpu, ...]:
    """The GPUs of this machine; empty where a driver is there that cannot be asked.

    Raises:
        OomDoctorError: there is none (exit 5).
    """
    gpus = list_gpus()
    if not gpus and not may_have_gpu() and not _ANOTHER_DRIVER.exists():
        raise _none_here(command)
    return gpus


def _none_here(command: Sequence[str]) -> OomDoctorError:
    emulated = shlex.join(["oomdoctor", "run", "--emulate", "RTX 4090", "--", *command])
    hint = f"emulate one: {emulated}"
    if slurm().on_login_node:
        started = shlex.join(["srun", "--gres=gpu:1", "oomdoctor", "run", "--", *command])
        hint = f"on this Slurm login node: {started}; or {hint}"
    reason = why_no_driver() or "the NVIDIA driver reports no GPU"
    return machine_error("no_gpu", f"no GPU to run on: {reason}", hint)


def device_of(processes: Sequence[Process], here: Sequence[Gpu]) -> RunDevice | None:
    """The GPUs that the command used, by what its processes say; else those of the machine.

    `usable_bytes` is that of the fullest one. None if nothing is known.
    """
    used = [
        (process.record, device) for process in processes for device in process.record["devices"]
    ]
    if used:
        named = {d.get("uuid") or (r["pid"], d["device"]) for r, d in used}
        smallest = min((d for _, d in used), key=lambda d: usable_bytes(d) or 0)
        return RunDevice(
            kind="emulated" if here and all(gpu.emulated for gpu in here) else "real",
            gpu_name=smallest.get("name"),
            gpus=len(named),
            total_bytes=smallest.get("total_bytes") or 0,
            compute_capability=smallest.get("capability"),
            context_bytes=None,
            usable_bytes=usable_bytes(smallest),
        )
    if not here:
        return None
    first = here[0]
    return RunDevice(
        kind="emulated" if first.emulated else "real",
        gpu_name=first.name,
        gpus=len(here),
        total_bytes=first.total_bytes,
        compute_capability=first.compute_capability,
        context_bytes=None,
        usable_bytes=None,
    )


def machine_of(processes: Sequence[Process], gpus: Sequence[Gpu]) -> Machine | None:
    """The machine with the first GPU that ran out of memory, and who else used it then.

    `gpus` is what the driver said at that moment. None if it said nothing.
    """
    records = [process.record for process in processes]
    uuids = [d.get("uuid") for r in records if r["ooms"] for d in r["devices"]]
    chosen = next((gpu for gpu in gpus if gpu.uuid in uuids), gpus[0] if gpus else None)
    if chosen is None:
        return None
    versions = next((record.get("versions") for record in records), None)
    machine = describe(Device("cuda", chosen), versions or {})
    ours = {record["pid"] for record in records}
    others = tuple(process for process in chosen.processes if process.pid not in ours)
    return replace(machine, other_processes=others)


def usable_bytes(device: dict[str, int]) -> int | None:
    """What a process could reserve on a device beside its context and other processes."""
    total = device.get("total_bytes")
    return None if total is None else max(0, total - device["outside_bytes"])
