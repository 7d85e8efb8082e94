"""Runs a command on real or emulated GPUs, watches it, and reports what it needed.

With `--cure` it is run again with remedies. A remedy is confirmed if the run with it fits the
emulated card.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

from oomdoctor import __version__
from oomdoctor.commands.devices.emulated import BUILDING, EmulatedGpus, check_possible, emulating
from oomdoctor.commands.explain.applied import apply_remedy
from oomdoctor.commands.run.branches import Asked, asked_of
from oomdoctor.commands.run.case import Rendered
from oomdoctor.commands.run.cure import (
    Change,
    change_of,
    changed,
    check_named,
    cured,
    is_past,
    unproven,
)
from oomdoctor.commands.run.launched_step import write_costs
from oomdoctor.commands.run.max_peak import judged
from oomdoctor.commands.run.process.after_stop import ended_if_it_waits
from oomdoctor.commands.run.process.command import Ended, run_command
from oomdoctor.commands.run.process.guard import end_left_over, guarded
from oomdoctor.commands.run.process.streams import Tail, last_line
from oomdoctor.commands.run.rank_records import read_processes
from oomdoctor.commands.run.report import report_of
from oomdoctor.commands.run.seen_outside import Seen, sampled
from oomdoctor.commands.run.session import (
    WatchRequest,
    line_of,
    session_folder,
    watching_environment,
)
from oomdoctor.commands.run.values import MOST, again_line, needs_most, with_both_ends
from oomdoctor.emulator.variables import VALUES
from oomdoctor.errors import machine_error
from oomdoctor.records.job.machine import Gpu
from oomdoctor.records.report.diagnosis import Diagnosis, Remedy
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.user_training import AppliedRemedy
from oomdoctor.system.environment import all_variables, slurm
from oomdoctor.system.machine.limits import available_memory
from oomdoctor.system.machine.nvml import list_gpus, may_have_gpu, why_no_driver
from oomdoctor.units import GIB, format_bytes

# How long a second run may take: so long, and so many times as long as the first.
_AT_LEAST_S, _LONGER = 60.0, 4
_MOST_AGAIN = 3
_ANOTHER_DRIVER = Path("/dev/kfd")  # AMD's: torch has the same allocator there
# Host memory of one process that trains on emulated GPUs: torch, transformers and their tables.
RANK_HOST_BYTES = round(0.6 * GIB)


def run_watched(
    request: WatchRequest,
    on_start: Callable[[str], None],
    on_crash: Callable[[Exception], None],
    rendered: Rendered,
) -> Report:
    """Run the command to its end; `on_start` gets a line to show before its first output, and one
    before a second run, if memory depends on values that are not known; `on_crash` the error if the
    summary cannot be made. The command's exit code is kept then. `rendered` makes the page of a
    report for a case.

    Raises:
        OomDoctorError: there is no GPU, or it cannot be emulated here, or the command cannot be
            started.
    """
    runs = _Runs(_checked(request), on_start, on_crash, rendered)
    return judged(_watched(request, runs), request.max_peak)


def _watched(request: WatchRequest, runs: _Runs) -> Report:
    on_start = runs.on_start
    on_start(_first_line(request.gpus, runs.here))

    def with_remedies(report: Report) -> Report:
        if not report.diagnoses or not is_past(report):
            return report
        change = partial(change_of, request, file=None)
        again = partial(runs.with_change, request, report)
        tried = cured(report, report.diagnoses[0], change, again)
        told = (tried.diagnosis, *report.diagnoses[1:])
        return replace(report, diagnoses=told, applied=tried.applied)

    first = runs.once(request, with_remedies if request.cure else None, shown=True)
    if not needs_most(request, first):
        return first
    on_start(again_line(first))
    tried: list[Report] = []

    branches = dict(runs.branches)

    def joined(again: Report) -> Report:
        tried.append(again)
        more = len(tried) == _MOST_AGAIN and runs.branches != branches
        return with_both_ends(request, first, tried, untried=more)

    for _ in range(_MOST_AGAIN):
        branches = dict(runs.branches)
        again = runs.again(replace(request, most=True, branches=branches), first, joined)
        # What a branch leads to may branch by other values.
        if not again.ranks or again.status != "ok" or runs.branches == branches:
            break
    return again if again.ranks else joined(again)


def verified(
    request: WatchRequest,
    told: Diagnosis,
    file: str,
    number: int | None,
    on_start: Callable[[str], None],
) -> AppliedRemedy | None:
    """The first remedy of a diagnosis that is a change of a file and is shown to fit, or that with
    a number. Without one, the last that was tried; None if none is a change of the file.

    The command runs as it is first: only if it runs out, a run that fits with a change shows
    something.

    Raises:
        OomDoctorError: as `run_watched`; or the command does not name the file (exit 2).
    """
    check_named(request.command, file)
    runs = _Runs(_checked(request), on_start, _raise, lambda _: "")
    on_start(f"{_first_line(request.gpus, runs.here)}: {shlex.join(request.command)}")
    first = runs.once(replace(request, keeps_case=False))

    def change(remedy: Remedy, place: int) -> Change | None:
        return None if number not in (None, place) else change_of(request, remedy, place, file)

    if not is_past(first):
        applied = apply_remedy(told, file, number)
        said = None if first.status == "ok" else last_line(runs.tails[-1].text())
        return applied if applied.number is None else replace(applied, proof=unproven(first, said))
    return cured(first, told, change, partial(runs.with_change, request, first)).applied


def _raise(error: Exception) -> NoReturn:
    raise error


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs a command, on the real GPUs that are `here`; for the others see `run_watched`."""

    here: tuple[Gpu, ...]
    on_start: Callable[[str], None]
    on_crash: Callable[[Exception], None]
    rendered: Rendered
    branches: Asked = field(default_factory=dict)
    """Filled by the first run: those that values decide which are not known."""
    tails: list[Tail] = field(default_factory=list)
    """What each run printed."""

    def again(
        self, request: WatchRequest, first: Report, joined: Callable[[Report], Report] | None = None
    ) -> Report:
        """Run it once more, unseen; it may wait for a mask to have nothing left, for ever."""
        unnoted = replace(request, why=False, trace=None)
        return self.once(unnoted, joined, _AT_LEAST_S + _LONGER * first.elapsed_s)

    def with_change(
        self, request: WatchRequest, first: Report, remedy: Remedy, change: Change
    ) -> tuple[Report, str | None]:
        """Run it once more, unseen, with a change; and the last words of a run that failed."""
        self.on_start(f"oomdoctor: running the command again: {remedy.change}")
        with changed(request, change) as with_it:
            report = self.again(with_it, first)
            if needs_most(with_it, report):
                both = partial(with_both_ends, with_it, report)
                most = replace(with_it, most=True, branches=dict(self.branches))
                report = self.again(most, report, lambda upper: both([upper]))
        return report, last_line(self.tails[-1].text())

    def once(
        self,
        request: WatchRequest,
        joined: Callable[[Report], Report] | None = None,
        limit_s: float | None = None,
        *,
        shown: bool = False,
    ) -> Report:
        """Run it, for `limit_s` at most. `joined` makes the report of it and of other runs."""
        clock, started = time.monotonic(), datetime.now(UTC)
        self.tails.append(tail := Tail())
        ask = list_gpus if request.gpus is None else tuple
        with session_folder() as folder, guarded(folder):
            with (
                _devices(request, folder, self.on_start) as variables,
                sampled(folder, self.here, ask) as samples,
                ended_if_it_waits(folder) as waiting,
            ):
                watching = watching_environment(folder, request)
                if request.path is not None and "PATH" not in variables:
                    watching["PATH"] = request.path
                environment = all_variables() | variables | watching
                ended = run_command(
                    request.command, environment, tail, shown=shown, limit_s=limit_s
                )
                end_left_over(folder)
                if request.notes_launches:
                    write_costs(folder, str(request.python), variables)
            elapsed_s = time.monotonic() - clock
            if waiting.waited_s is not None:
                ended = Ended(0, ended.signal)
            seen = Seen(folder, ended, tail, samples, self.here, waited_s=waiting.waited_s)
            if request.gpus is not None and request.assumed in (None, MOST):
                self._note_branches(folder)
            return report_of(
                request, seen, started, elapsed_s, self.on_crash, self.rendered, joined
            )

    def _note_branches(self, folder: Path) -> None:
        with suppress(Exception):  # a record may be damaged
            for record in (process.record for process in read_processes(folder)):
                own = tuple(record["own_files"])
                self.branches.update(asked_of(record["unknown_reads"], own))


def _gpus_here(command: Sequence[str]) -> tuple[Gpu, ...]:
    """The GPUs of this machine; empty where a driver is there that cannot be asked.

    Raises:
        OomDoctorError: there is none (exit 5).
    """
    gpus = list_gpus()
    if gpus or may_have_gpu() or _ANOTHER_DRIVER.exists():
        return gpus
    emulated = shlex.join(["oomdoctor", "run", "--emulate", "RTX 4090", "--", *command])
    hint = f"emulate one: {emulated}"
    if slurm().on_login_node:
        started = shlex.join(["srun", "--gres=gpu:1", "oomdoctor", "run", "--", *command])
        hint = f"on this Slurm login node: {started}; or {hint}"
    reason = why_no_driver() or "the NVIDIA driver reports no GPU"
    raise machine_error("no_gpu", f"no GPU to run on: {reason}", hint)


def _checked(request: WatchRequest) -> tuple[Gpu, ...]:
    """The real GPUs, if the command shall run on them; checks that it can run where it shall."""
    if request.gpus is None:
        return _gpus_here(request.command)
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
