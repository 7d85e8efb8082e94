"""Runs a command on real or emulated GPUs, watches it, and reports what it needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oomdoctor import __version__
from oomdoctor.commands.devices.emulated import BUILDING, EmulatedGpus, check_possible, emulating
from oomdoctor.commands.run.cure import cured
from oomdoctor.commands.run.process.command import run_command
from oomdoctor.commands.run.process.guard import end_left_over, guarded
from oomdoctor.commands.run.process.streams import Tail
from oomdoctor.commands.run.real import gpus_here
from oomdoctor.commands.run.report import Seen, report_of
from oomdoctor.commands.run.seen_outside import sampled
from oomdoctor.commands.run.session import (
    WatchRequest,
    line_of,
    session_folder,
    watching_environment,
)
from oomdoctor.commands.run.values import again_line, needs_most, with_both_ends
from oomdoctor.emulator.variables import VALUES
from oomdoctor.errors import machine_error
from oomdoctor.records.job.machine import Gpu
from oomdoctor.records.report.diagnosis import Remedy
from oomdoctor.records.report.report import Report
from oomdoctor.system.environment import command_environment
from oomdoctor.system.machine.limits import available_memory
from oomdoctor.system.machine.nvml import list_gpus
from oomdoctor.units import GIB, format_bytes

# How long a second run may take: so long, and so many times as long as the first.
_AT_LEAST_S, _LONGER = 60.0, 4
# Host memory of one process that trains on emulated GPUs: torch, transformers and their tables.
RANK_HOST_BYTES = round(0.6 * GIB)


def run_watched(
    request: WatchRequest,
    on_start: Callable[[str], None],
    on_crash: Callable[[Exception], None],
    rendered: Callable[[Report], str],
) -> Report:
    """Run the command to its end; `on_start` gets a line to show before its first output, and one
    before a second run, if memory depends on values that are not known; `on_crash` the error if the
    summary cannot be made. The command's exit code is kept then. `rendered` makes the page of a
    report for a case.

    Raises:
        OomDoctorError: there is no GPU, or it cannot be emulated here, or the command cannot be
            started.
    """
    here = _checked(request)
    on_start(_first_line(request.gpus, here))

    def once(
        asked: WatchRequest,
        joined: Callable[[Report], Report] | None = None,
        limit_s: float | None = None,
        *,
        shown: bool = False,
    ) -> Report:
        return _run_once(asked, here, on_start, on_crash, rendered, joined, limit_s, shown=shown)

    def with_remedies(report: Report) -> Report:
        def again(remedy: Remedy, settings: Mapping[str, Any]) -> Report:
            on_start(f"oomdoctor: running the command again: {remedy.change}")
            limit_s = _AT_LEAST_S + _LONGER * report.elapsed_s
            return once(replace(request, cure=False, changes=settings), limit_s=limit_s)

        return cured(report, again)

    first = once(request, with_remedies if request.cure else None, shown=True)
    if not needs_most(request, first):
        return first
    on_start(again_line(first))

    def joined(again: Report) -> Report:
        return with_both_ends(request, first, again)

    # It may wait for a mask to have nothing left, for ever.
    again = once(replace(request, most=True), joined, _AT_LEAST_S + _LONGER * first.elapsed_s)
    return again if again.ranks else joined(again)


def _run_once(
    request: WatchRequest,
    here: tuple[Gpu, ...],
    on_start: Callable[[str], None],
    on_crash: Callable[[Exception], None],
    rendered: Callable[[Report], str],
    joined: Callable[[Report], Report] | None,
    limit_s: float | None,
    *,
    shown: bool,
) -> Report:
    """Run the command, for `limit_s` at most; its output is `shown` or not. `joined` makes the
    report of it and of other runs.
    """
    clock, started = time.monotonic(), datetime.now(UTC)
    tail = Tail()
    with session_folder() as folder, guarded(folder):
        ask = list_gpus if request.gpus is None else tuple
        with (
            _devices(request, folder, on_start) as variables,
            sampled(folder, here, ask) as samples,
        ):
            watching = watching_environment(
                folder,
                request.steps,
                request.weights,
                alone=request.gpus is not None and request.gpus.alone,
                counted=request.gpus is None,
                goes_past=request.gpus is not None and not request.stop_at_oom,
                changes=request.changes,
            )
            if request.path is not None and "PATH" not in variables:
                watching["PATH"] = request.path
            variables = command_environment(variables | watching)
            ended = run_command(request.command, variables, tail, shown=shown, limit_s=limit_s)
            end_left_over(folder)
        elapsed_s = time.monotonic() - clock
        seen = Seen(folder, ended, tail, samples, here)
        return report_of(request, seen, started, elapsed_s, on_crash, rendered, joined)


def _checked(request: WatchRequest) -> tuple[Gpu, ...]:
    """The real GPUs, if the command shall run on them; checks that it can run where it shall."""
    if request.gpus is None:
        return gpus_here(request.command)
    check_possible(str(request.python), "--emulate")
    refuse_too_many(request, available_memory())
    return ()


@contextmanager
def _devices(
    request: WatchRequest, folder: Path, on_start: Callable[[str], None]
) -> Iterator[dict[str, str]]:
    """The variables that let the command see its devices; none for real ones."""
    if request.gpus is None:
        yield {}
        return

    def on_build() -> None:
        on_start(f"oomdoctor: {BUILDING}")

    python = str(request.python)
    with emulating(request.gpus, python, folder, request.path, on_build) as variables:
        yield variables | ({} if request.assumed is None else {VALUES: request.assumed})


def refuse_too_many(request: WatchRequest, available_bytes: int) -> None:
    """Refuse GPUs whose processes would not fit into the memory of this machine.

    Raises:
        OomDoctorError: one process a GPU needs more host memory than is available (exit 5).
    """
    gpus = request.gpus
    if gpus is None:
        return
    count, needed = gpus.count, gpus.count * RANK_HOST_BYTES
    if count > 1 and not gpus.alone and needed > available_bytes:
        raise machine_error(
            "host_memory",
            f"{count} GPUs need {count} processes with about {format_bytes(needed)} of host "
            f"memory, and {format_bytes(available_bytes)} is available",
            f"let one rank stand for all: {line_of(request, gpus.card.name, alone=True)}",
        )


def _first_line(gpus: EmulatedGpus | None, here: tuple[Gpu, ...]) -> str:
    line = f"oomdoctor {__version__}: "
    if gpus is None:
        names = {gpu.name for gpu in here}
        if len(names) != 1:
            return f"{line}watching the command on {len(here) or 'the'} GPUs"
        (name,) = names
        size = format_bytes(here[0].total_bytes)
        count = f"{len(here)} x " if len(here) > 1 else ""
        return f"{line}watching the command on {count}{name} ({size})"
    size = format_bytes(gpus.card.total_bytes)
    sized = f"a GPU with {size}" if gpus.count == 1 else f"{gpus.count} GPUs with {size} each"
    what = f"{gpus.name} ({size})" if gpus.card.facts is not None else sized
    line += f"emulating {what}"
    if gpus.count > 1 and gpus.alone:
        line += "; one rank runs and stands for all"
    elif gpus.count > 1:
        host = format_bytes(gpus.count * RANK_HOST_BYTES)
        line += f"; {gpus.count} processes need about {host} of host memory"
    return line
