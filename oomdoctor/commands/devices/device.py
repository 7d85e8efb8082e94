"""The device of a survey: its budget, its published peaks, and its warnings."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from oomdoctor.analysis.command_line import command_line
from oomdoctor.analysis.fit import headroom_bytes
from oomdoctor.analysis.memory.host import host_memory, is_known
from oomdoctor.analysis.search.micro_batch import MAX_TRIES, divisors
from oomdoctor.errors import OomDoctorError, machine_error
from oomdoctor.records.configuration.config import Rung, TrainConfig
from oomdoctor.records.job.machine import GpuFacts, real_name
from oomdoctor.records.job.model import ModelSpec, ParameterCounts
from oomdoctor.records.job.result import Inspection
from oomdoctor.records.report.plan import PlanRequest
from oomdoctor.records.report.report import Budget, SurveyRequest, Warn
from oomdoctor.records.report.warnings import (
    MEMORY_NOT_FREE,
    host_memory_short,
    other_processes,
    warning,
)
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.environment import slurm
from oomdoctor.system.machine.devices import Device
from oomdoctor.system.machine.limits import available_memory, total_memory
from oomdoctor.system.machine.nvml import list_gpus
from oomdoctor.units import MIB, format_bytes, format_seconds

GIVE_BACK_LIMIT_S = 5.0
# Sequence length and effective batch size of `probe` on the CPU, if none are given.
USUAL_CPU_SHAPE = (64, 4)
_TOLERANCE = 64 * MIB
# A conservative rate for fp32 training on one core, to distinguish minutes from hours in advance.
_CPU_FLOPS_PER_CORE = 15e9
_CPU_PATIENCE_S = 30 * 60
_STEPS_PER_TRY = 9  # two recorded, two to warm up, five timed


def budget(
    chosen: Device, inspection: Inspection | None, cap: int | None, headroom_share: float
) -> Budget:
    """What a rung may use: the free memory or the cap, whichever is less, minus the headroom.

    It takes the driver's figures, because no CUDA context exists yet. Without NVML it takes those
    of the worker. `inspection` is None before the worker has answered. On several GPUs it is what
    each may use: that of the GPU with the least free memory. Ranks on the CPU share its memory.
    """
    if chosen.gpu is not None:
        total = (inspection and inspection.device_total_bytes) or chosen.gpu.total_bytes
        sizes = [gpu.free_bytes for gpu in chosen.gpus if gpu.free_bytes is not None]
        free_now = min(sizes, default=(inspection and inspection.device_free_bytes) or total)
        free = min([total, free_now, *(gpu.total_bytes for gpu in chosen.others)])
    else:
        total, free = total_memory() // chosen.ranks, available_memory() // chosen.ranks
    ground = free if cap is None else min(free, cap)
    headroom = headroom_bytes(ground, headroom_share)
    return Budget(total, cap, free, headroom, ground - headroom)


def as_it_is_now(chosen: Device) -> Device:
    """The same device with its current free memory and processes."""
    if chosen.gpu is None:
        return chosen
    now = {gpu.uuid: gpu for gpu in list_gpus()}
    first, *others = (now.get(gpu.uuid, gpu) for gpu in chosen.gpus)
    return Device(chosen.type, first, tuple(others))


def too_few_gpus(error: OomDoctorError, request: SurveyRequest) -> OomDoctorError:
    """The error that there are too few GPUs, with the line to type for this request."""
    if slurm().on_login_node:
        hint = f"on this Slurm login node: srun --gres=gpu:{request.most_gpus()} "
        hint += command_line(request)
    else:
        of_all = PlanRequest((), all_gpus=not list_gpus())  # otherwise of the card that is here
        planned = replace(request, plan=of_all, vram_bytes=None, device="cuda")
        hint = f"predict it without the GPUs: {command_line(planned)}"
    return machine_error(error.code, error.message, hint)


def warnings(
    chosen: Device, limits: Budget, inspection: Inspection, request: SurveyRequest
) -> list[Warn]:
    """Warnings about the device and the model."""
    warns = []
    if limits.cap_bytes is not None and limits.cap_bytes > limits.free_bytes:
        cap, free = format_bytes(limits.cap_bytes), format_bytes(limits.free_bytes)
        warns.append(warning("cap_above_free", cap=cap, free=free))
    if chosen.gpu is not None:
        running = [process for gpu in chosen.gpus for process in gpu.processes]
        others = [process for process in running if process.pid != os.getpid()]
        if others:
            warns.append(other_processes(others))
    return warns + model_warnings(inspection, request)


def short_of_host(
    chosen: Device, request: SurveyRequest, rungs: Sequence[Rung], counts: ParameterCounts
) -> list[Warn]:
    """A warning about rungs whose ranks may need more host memory than this machine has.

    Ranks on the CPU have everything there, and their budget is about that. On emulated GPUs one
    rank may stand for all.
    """
    if chosen.gpu is None or chosen.gpu.emulated:
        return []
    has, here = total_memory(), request.gpus_here()
    needs = {
        rung.label: host_memory(
            replace(rung.config, gpus_per_node=here),
            counts,
            None if rung.config.method == "full" else 0,  # adapters are small
        ).peak_bytes
        for rung in rungs
        if is_known(rung.config)
    }
    short = {label: size for label, size in needs.items() if size > has}
    return [host_memory_short(short, has, here=True)] if short else []


def model_warnings(inspection: Inspection, request: SurveyRequest) -> list[Warn]:
    """Warnings about the model."""
    made_up = request.weights == "synthetic" and request.routing != "worst"
    routed = inspection.parameters.experts and made_up
    return [warning("moe_routing")] if routed else []


def not_given_back(chosen: Device) -> list[Warn]:
    """Wait briefly until the memory of a worker is free again; a warning if it is not."""
    if chosen.gpu is None:
        return []
    end = time.monotonic() + GIVE_BACK_LIMIT_S
    while True:
        now = {gpu.uuid: gpu.free_bytes for gpu in list_gpus()}
        taken = [
            gpu.free_bytes - free
            for gpu in chosen.gpus
            if gpu.free_bytes is not None and (free := now.get(gpu.uuid)) is not None
        ]
        missing = max(taken, default=0)
        if missing <= _TOLERANCE:
            return []
        if time.monotonic() > end:
            return [warning(MEMORY_NOT_FREE, missing=format_bytes(missing))]
        time.sleep(0.1)


def timing_limit_s(chosen: Device) -> float:
    """The most seconds to time a try whose steps keep varying."""
    return 20.0 if chosen.gpu is not None else 10.0


def facts(chosen: Device, inspection: Inspection) -> GpuFacts | None:
    """The published facts of the card; None on the CPU and for an unknown card."""
    name = inspection.device_name or (chosen.gpu.name if chosen.gpu else None)
    return known_card(name, inspection.device_total_bytes) if name else None


def known_card(name: str, total_bytes: int | None) -> GpuFacts | None:
    """The published facts of a card by the name that the driver gives it, emulated or not."""
    return find_gpu(real_name(name), total_bytes)


def _tokens(config: TrainConfig) -> int:
    """The tokens of all tries of a rung; each step has up to two micro-steps."""
    whole = config.effective_batch_size
    fixed = config.micro_batch_size
    sizes = [fixed] if isinstance(fixed, int) else divisors(whole)[-MAX_TRIES:]
    sequences = sum(size * min(2, whole // size) for size in sizes)
    return sequences * config.sequence_length * _STEPS_PER_TRY


def refuse_what_takes_hours(
    spec: ModelSpec, rungs: tuple[Rung, ...], counts: ParameterCounts, request: SurveyRequest
) -> None:
    """Refuse a survey that would take hours on a CPU that the user did not choose.

    Raises:
        OomDoctorError: there is no GPU and the CPU is too slow for the ladder (exit 5).
    """
    flops = sum(6.0 * counts.total * _tokens(rung.config) for rung in rungs)
    seconds = flops / (_CPU_FLOPS_PER_CORE * len(os.sched_getaffinity(0)))
    if seconds <= _CPU_PATIENCE_S:
        return
    # What the CPU was asked for says nothing about a GPU.
    is_usual = (request.sequence_length, request.effective_batch_size) == USUAL_CPU_SHAPE
    sizes = {"--seq-len": None, "--effective-batch": None} if is_usual else {}
    if slurm().on_login_node:
        gres = f"srun --gres=gpu:{request.most_gpus()}"
        hint = f"on this Slurm login node: {gres} {command_line(request, sizes)}"
    else:
        planned = replace(request, plan=PlanRequest((), all_gpus=True), vram_bytes=None)
        hint = f"predict it without a GPU: {command_line(planned, sizes)}"
    raise machine_error(
        "no_gpu",
        f"no GPU found, and {len(rungs)} configurations of {spec.id} at sequence length "
        f"{max(rung.config.sequence_length for rung in rungs):,} would take about "
        f"{format_seconds(seconds)} on the CPU",
        f"{hint}\nor run it on the machine with the GPU, or here with --device cpu",
    )
