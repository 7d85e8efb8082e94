"""The records that the watched processes left, and what they say about each rank and each GPU."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from oomdoctor.commands.run import places
from oomdoctor.commands.run.branches import unknown_branches
from oomdoctor.commands.run.places import Record
from oomdoctor.records.job.machine import Gpu, Machine
from oomdoctor.records.job.result import Evidence
from oomdoctor.records.report.run import MemoryPoint, RankMemory, RankOom, RankOutcome, RunDevice
from oomdoctor.records.report.watch import StepPeaks
from oomdoctor.system.machine.devices import Device, describe

_MOST_POINTS = 120


@dataclass(frozen=True, slots=True)
class Events:
    """The allocations of one GPU of one process, for a replay.

    Three numbers an event: the block, its size (or minus its size when it is freed), its stream.
    """

    rank: int
    numbers: array[int]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Process:
    """What one process left; `rank` is unique among the processes of the command."""

    rank: int
    record: Record


def read_processes(folder: Path) -> list[Process]:
    """The processes that used CUDA, by rank."""
    records = []
    for path in folder.glob("process-*.json"):
        with suppress(OSError, ValueError):
            record = json.loads(path.read_text(encoding="utf-8"))
            places.take_code(record)
            if record["devices"]:
                records.append(record)
    records.sort(
        key=lambda written: (written["rank"] is None, written["rank"] or 0, written["written_at"])
    )
    counts = Counter(record["rank"] for record in records)
    if counts[None] or max(counts.values(), default=0) > 1:  # such as training and then evaluating
        return [Process(number, record) for number, record in enumerate(records)]
    return [Process(record["rank"], record) for record in records]


def read_events(folder: Path, processes: Sequence[Process]) -> list[Events]:
    """The allocations of processes, for each of their GPUs."""
    events = []
    for rank, record in ((process.rank, process.record) for process in processes):
        for device in record["devices"]:
            path = folder / f"events-{record['pid']}-{device['device']}.bin"
            numbers = array("q")
            with suppress(OSError):
                numbers.frombytes(path.read_bytes())
            events.append(Events(rank, numbers, device["events_are_whole"]))
    return events


def rank_memory(
    process: Process,
    *,
    failed: bool,
    usable_bytes: Callable[[Record], int | None],
    context_bytes: int | None,
    evidence: Evidence = "emulated",
) -> list[RankMemory]:
    """What each GPU of a process needed; `failed` says whether the command failed.

    `usable_bytes` of a device's record is what the process could reserve, `context_bytes` what its
    context takes.
    """
    record = process.record
    libraries = record["library_folders"]
    branches = unknown_branches(record["unknown_reads"], tuple(record["own_files"]))
    memories = []
    for device in record["devices"]:
        peak = device["peak"] or {"frames": [], "backward_frames": [], "phase": "unknown"}
        oom = _oom(record, device, failed_command=failed)
        reserved, usable = device["peak_reserved_bytes"], usable_bytes(device)
        short = None if usable is None else max(0, reserved - usable)
        # What libraries hold on an emulated GPU, and the context is a part of.
        beside = max(context_bytes or 0, device.get("beside_torch_bytes") or 0)
        memories.append(
            RankMemory(
                rank=process.rank,
                pid=record["pid"],
                device=device["device"],
                outcome=_outcome(record, oom, failed),
                evidence=evidence,
                peak_allocated_bytes=device["peak_allocated_bytes"],
                peak_reserved_bytes=reserved,
                peak_device_bytes=None if context_bytes is None else reserved + beside,
                peak_phase=places.phase_of_peak(peak),
                peak_module=peak.get("module"),
                peak_step=peak.get("step"),
                where=places.user_line(peak, libraries, record.get("script")),
                library_where=places.library_line(peak, libraries),
                headroom_bytes=None if usable is None else max(0, usable - reserved),
                retries=device["retries"],
                steps=record["step"],
                stopped=record["stopped"],
                oom=oom,
                unknown_branches=branches,
                steps_memory=tuple(StepPeaks(**peaks) for peaks in device["steps"]),
                memory=_points(device["curve"]),
                unit=record.get("unit", "step"),
                not_reached=places.not_reached(record),
                short_bytes=short if oom is not None and oom.went_past else None,
            )
        )
    return memories


def ranks_together(processes: Sequence[Process]) -> int:
    """How many ranks train together, by what the processes say."""
    return max((int(process.record["world"]) for process in processes), default=1)


def device_of(processes: Sequence[Process], here: Sequence[Gpu]) -> RunDevice | None:
    """The GPUs that the command used, by what its processes say; else those of the machine.

    `usable_bytes` is that of the fullest one. None if nothing is known.
    """
    used = [
        (process.record, device) for process in processes for device in process.record["devices"]
    ]
    if used:
        named = {d.get("uuid") or (r["pid"], d["device"]) for r, d in used}
        smallest = min((d for _, d in used), key=lambda d: usable_on(d) or 0)
        return RunDevice(
            kind="emulated" if here and all(gpu.emulated for gpu in here) else "real",
            gpu_name=smallest.get("name"),
            gpus=len(named),
            total_bytes=smallest.get("total_bytes") or 0,
            compute_capability=smallest.get("capability"),
            context_bytes=None,
            usable_bytes=usable_on(smallest),
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


def usable_on(device: Record) -> int | None:
    """What a process could reserve on a device beside its context and other processes."""
    total = device.get("total_bytes")
    return None if total is None else max(0, total - device["outside_bytes"])


def failures(process: Process) -> list[Record]:
    """The requests that failed, and the first one that was granted past a GPU's memory."""
    past = process.record.get("past")
    return [*process.record["ooms"], *([past] if past is not None else [])]


def ran_out(ranks: Sequence[RankMemory]) -> bool:
    """Whether a rank ran out of GPU memory."""
    return any(rank.outcome == "oom" for rank in ranks)


def _outcome(record: Record, oom: RankOom | None, failed: bool) -> RankOutcome:
    if oom is not None and not oom.caught:
        return "oom"
    return "failed" if failed and (record["exception"] or not record["ended"]) else "fits"


def _oom(record: Record, device: Record, *, failed_command: bool) -> RankOom | None:
    """The request that would have ended the process on a device, else the last that failed.

    A script may catch the error and then exit with 1, which fails the command (`failed_command`).
    """
    past = record.get("past")
    if past is not None and past["device"] == device["device"]:
        return _oom_of(record, past, caught=False, went_past=True)
    failed = [oom for oom in record["ooms"] if oom["device"] == device["device"]]
    if not failed:
        return None
    last = failed[-1]
    exception = record["exception"]
    ended_by_it = exception is not None and "OutOfMemory" in exception["type"]
    went_on = record["step"] >= last["step"] or (
        record["ended"] and exception is None and not failed_command
    )
    caught = went_on and not ended_by_it
    return _oom_of(record, last, caught=caught, went_past=False)


def _oom_of(record: Record, last: Record, *, caught: bool, went_past: bool) -> RankOom:
    return RankOom(
        requested_bytes=last["requested_bytes"],
        free_bytes=last["free_bytes"],
        total_bytes=last["total_bytes"],
        least_bytes=last["allocated_bytes"] + last["requested_bytes"],
        phase=places.phase_of_peak(last),
        module=last["module"],
        where=places.user_line(last, record["library_folders"], record.get("script")),
        step=last["step"],
        caught=caught,
        snapshot=last.get("snapshot"),
        went_past=went_past,
    )


def _points(curve: list[list[int]]) -> tuple[MemoryPoint, ...]:
    """Memory over time in few points; of each stretch the one with most memory."""
    if not curve:
        return ()
    begin = curve[0][0]
    size = -(-len(curve) // _MOST_POINTS)
    parts = [curve[i : i + size] for i in range(0, len(curve), size)]
    highest = [max(part, key=lambda point: point[2]) for part in parts]
    return tuple(
        MemoryPoint((us - begin) / 1e6, step, used, held) for us, step, used, held in highest
    )
