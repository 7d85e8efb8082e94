"""Runs a command on emulated GPUs, watches it, and reports what it needed."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from oomdoctor import __version__
from oomdoctor.analysis.allocator import AllocatorSettings
from oomdoctor.analysis.allocator.settings import equal_blocks_of
from oomdoctor.emulator.enter import entered
from oomdoctor.errors import machine_error
from oomdoctor.records.facts.warnings import (
    gpu_unused,
    not_steady,
    smallest_variant,
    unknown_values,
)
from oomdoctor.records.report import SCHEMA, Picks, Report, Status, Tool, Warn
from oomdoctor.records.run import RankMemory, RunDevice, SmallestGpu
from oomdoctor.runs.emulated import EmulatedGpus, devices_of
from oomdoctor.runs.watched.command import Ended, run_command
from oomdoctor.runs.watched.diagnosis import about_a_value, diagnoses_of
from oomdoctor.runs.watched.processes import (
    Process,
    rank_memory,
    read_events,
    read_processes,
)
from oomdoctor.runs.watched.session import Weights, session_folder, watching_environment
from oomdoctor.runs.watched.smallest import least_capability, next_larger, smallest_gpu
from oomdoctor.runs.watched.tail import Tail
from oomdoctor.system.environment import cache_dir, command_environment, variable
from oomdoctor.system.machine.memory import available_memory
from oomdoctor.units import GIB, format_bytes

# Host memory of one process that trains on emulated GPUs: torch, transformers and their tables.
RANK_HOST_BYTES = round(0.6 * GIB)
_FEW_STEPS = 3


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What to run, on which GPUs, with which interpreter.

    `steps` is "steady" (stop once memory repeats), "all" or a number of optimizer steps. With
    `weights` "synthetic", `from_pretrained` needs no checkpoint.
    """

    command: tuple[str, ...]
    gpus: EmulatedGpus
    python: Path
    steps: str | int
    weights: Weights = "real"


def run_watched(request: WatchRequest, on_start: Callable[[str], None]) -> Report:
    """Run the command to its end; `on_start` gets a line to show before its first output.

    Raises:
        OomDoctorError: the GPUs cannot be emulated here, or the command cannot be started.
    """
    clock, started = time.monotonic(), datetime.now(UTC)
    refuse_too_many(request.gpus.count, available_memory())
    tail = Tail()
    with session_folder() as folder:
        gpu_folder = folder / "gpu"
        gpu_folder.mkdir()
        cache = cache_dir() / "emulator"
        devices = devices_of(request.gpus)
        with entered(request.python, devices, gpu_folder, cache, variable("CC")) as session:
            watching = watching_environment(folder, request.steps, request.weights)
            environment = command_environment(session.variables | watching)
            on_start(_first_line(request.gpus))
            ended = run_command(request.command, environment, tail)
        return _report(request, folder, ended, tail, started, time.monotonic() - clock)


def refuse_too_many(count: int, available_bytes: int) -> None:
    """Refuse GPUs whose processes would not fit into the memory of this machine.

    Raises:
        OomDoctorError: one process a GPU needs more host memory than is available (exit 5).
    """
    needed = count * RANK_HOST_BYTES
    if count > 1 and needed > available_bytes:
        raise machine_error(
            "host_memory",
            f"{count} GPUs need {count} processes with about {format_bytes(needed)} of host "
            f"memory, and {format_bytes(available_bytes)} is available",
            f"emulate at most {max(1, available_bytes // RANK_HOST_BYTES)} GPUs here",
        )


def _first_line(gpus: EmulatedGpus) -> str:
    size = format_bytes(gpus.card.total_bytes)
    what = f"{gpus.name} ({size})" if gpus.card.facts is not None else f"{gpus.name} of memory"
    line = f"oomdoctor {__version__}: emulating {what}"
    if gpus.count > 1:
        host = format_bytes(gpus.count * RANK_HOST_BYTES)
        line += f"; {gpus.count} processes need about {host} of host memory"
    return line


def _report(
    request: WatchRequest,
    folder: Path,
    ended: Ended,
    tail: Tail,
    started: datetime,
    elapsed_s: float,
) -> Report:
    card = request.gpus.card
    processes = read_processes(folder)
    context = card.context.likely
    usable = card.total_bytes - context
    failed = ended.exit_code != 0
    ranks = tuple(
        memory
        for process in processes
        for memory in rank_memory(
            process, failed=failed, usable_bytes=usable, context_bytes=context
        )
    )
    ran_out = any(rank.outcome == "oom" for rank in ranks)
    events = [one for process in processes for one in read_events(folder, process)]
    settings = _settings(processes)
    built_for = [word for one in processes for word in one.record["architectures"]]
    least = least_capability(card.capability, built_for)
    smallest = smallest_gpu(ranks, events, least, settings)
    return Report(
        schema=SCHEMA,
        command="run",
        status=_status(ended, ran_out),
        exit_code=ended.exit_code,
        tool=Tool("oomdoctor", __version__),
        started_at=started.isoformat(timespec="seconds"),
        elapsed_s=round(elapsed_s, 3),
        run_dir=None,
        request=None,
        machine=None,
        model=None,
        budget=None,
        results=(),
        ranking=(),
        ranking_reasons={},
        picks=Picks(None, None, None),
        next_commands=_next(request, ranks, smallest, least),
        warnings=tuple(_warnings(request, processes, ranks, failed=failed)),
        errors=(),
        diagnoses=diagnoses_of(tail, request.command) if ran_out or failed else (),
        device=RunDevice(
            kind="emulated",
            gpu_name=card.facts.name if card.facts is not None else None,
            gpus=request.gpus.count,
            total_bytes=card.total_bytes,
            compute_capability=card.capability,
            context_bytes=context,
            usable_bytes=usable,
        ),
        command_line=request.command,
        exit_code_of_command=ended.exit_code,
        ranks=ranks,
        smallest_gpu=smallest,
    )


def _next(
    request: WatchRequest,
    ranks: Sequence[RankMemory],
    smallest: SmallestGpu | None,
    least: tuple[int, int],
) -> tuple[str, ...]:
    """The same command on the smallest card that would do, or on one that may."""
    needed = [rank.oom.least_bytes for rank in ranks if rank.oom is not None]
    would_do = smallest.name if smallest is not None else None
    name = next_larger(max(needed), least) if needed else would_do
    if name is None or name == request.gpus.card.name:
        return ()
    gpus = name if request.gpus.count == 1 else f"{request.gpus.count}x{name}"
    return (shlex.join(["oomdoctor", "run", "--emulate", gpus, "--", *request.command]),)


def _status(ended: Ended, ran_out: bool) -> Status:
    if ended.signal is not None:
        return "interrupted"
    if ran_out:
        return "no"
    return "error" if ended.exit_code else "ok"


def _warnings(
    request: WatchRequest,
    processes: Sequence[Process],
    ranks: Sequence[RankMemory],
    *,
    failed: bool,
) -> list[Warn]:
    found = []
    card = request.gpus.card
    if card.asked_as is not None and card.variants:
        found.append(smallest_variant(card.asked_as, card.name, card.variants))
    if not ranks and not failed:
        found.append(gpu_unused())
    value = about_a_value(list(processes)) if failed else None
    if value is not None:
        found.append(unknown_values(value))
    steps = max((rank.steps for rank in ranks), default=0)
    ran_on = request.steps == "steady" and not any(rank.stopped for rank in ranks)
    if ran_on and not failed and steps > _FEW_STEPS:
        found.append(not_steady(steps))
    return found


def _settings(processes: Sequence[Process]) -> AllocatorSettings:
    """The allocator's settings as the processes had them; the defaults if they cannot be read."""
    text = next((str(one.record["allocator"] or "") for one in processes), "")
    release = next((one.record["torch"] for one in processes), [2, 12])
    major, minor = release[:2]
    try:
        parsed = AllocatorSettings.parse(text)
    except ValueError:
        parsed = AllocatorSettings()
    return replace(parsed, equal_blocks=equal_blocks_of((major, minor)))
