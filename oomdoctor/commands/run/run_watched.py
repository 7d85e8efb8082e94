"""Runs a command on real or emulated GPUs, watches it, and reports what it needed.

With `--cure` it is run again with remedies that are settings of its Trainer. A remedy is confirmed
if the run with it fits the emulated card.
"""

from __future__ import annotations

import ast
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oomdoctor import __version__
from oomdoctor.commands.devices.emulated import BUILDING, EmulatedGpus, check_possible, emulating
from oomdoctor.commands.run.branches import Asked, asked_of
from oomdoctor.commands.run.case import Rendered
from oomdoctor.commands.run.max_peak import judged
from oomdoctor.commands.run.process.after_stop import ended_if_it_waits
from oomdoctor.commands.run.process.command import Ended, run_command
from oomdoctor.commands.run.process.guard import end_left_over, guarded
from oomdoctor.commands.run.process.streams import Tail
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
from oomdoctor.explain.remedies.wording import with_peaks
from oomdoctor.records.job.machine import Gpu
from oomdoctor.records.report.diagnosis import Remedy
from oomdoctor.records.report.report import Report
from oomdoctor.system.environment import all_variables, slurm
from oomdoctor.system.machine.limits import available_memory
from oomdoctor.system.machine.nvml import list_gpus, may_have_gpu, why_no_driver
from oomdoctor.units import GIB, format_bytes

# How long a second run may take: so long, and so many times as long as the first.
_AT_LEAST_S, _LONGER = 60.0, 4
_MOST_CURES = 3
_MOST_AGAIN = 3
_ANOTHER_DRIVER = Path("/dev/kfd")  # AMD's: torch has the same allocator there
_ORDER = ("run", "replay", "no", None)
Settings = Mapping[str, Any]
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
        def again(remedy: Remedy, settings: Settings) -> Report:
            on_start(f"oomdoctor: running the command again: {remedy.change}")
            return runs.again(replace(request, cure=False, changes=settings), report)

        return cured(report, again)

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


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs a command, on the real GPUs that are `here`; for the others see `run_watched`."""

    here: tuple[Gpu, ...]
    on_start: Callable[[str], None]
    on_crash: Callable[[Exception], None]
    rendered: Rendered
    branches: Asked = field(default_factory=dict)
    """Filled by the first run: those that values decide which are not known."""

    def again(
        self, request: WatchRequest, first: Report, joined: Callable[[Report], Report] | None = None
    ) -> Report:
        """Run it once more, unseen; it may wait for a mask to have nothing left, for ever."""
        return self.once(request, joined, _AT_LEAST_S + _LONGER * first.elapsed_s)

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
        tail = Tail()
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
                variables = all_variables() | variables | watching
                ended = run_command(request.command, variables, tail, shown=shown, limit_s=limit_s)
                end_left_over(folder)
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


def cured(report: Report, again: Callable[[Remedy, Settings], Report]) -> Report:
    """The report of a run past the card's memory, with its remedies tried until one fits.

    `again` runs the command with the settings of a remedy.
    """
    if not report.diagnoses or not any(rank.went_past for rank in report.ranks):
        return report
    remedies: list[Remedy] = []
    first, tried = report.diagnoses[0], 0
    for remedy in first.remedies:
        settings = settings_of(remedy)
        done = tried == _MOST_CURES or any(cure.confirmed == "run" for cure in remedies)
        if settings and not done:
            tried += 1
            remedy = _after(report, remedy, again(remedy, settings))
        remedies.append(remedy)
    remedies.sort(key=lambda cure: _ORDER.index(cure.confirmed) if cure.enough else len(_ORDER))
    told = replace(first, remedies=tuple(remedies))
    return replace(report, diagnoses=(told, *report.diagnoses[1:]))


def settings_of(remedy: Remedy) -> Settings:
    """The arguments of `TrainingArguments(...)` that a remedy sets; {} if it is no such line."""
    try:
        call = ast.parse(remedy.lines.get("transformers", ""), mode="eval").body
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "TrainingArguments":
            return {}
        return {
            keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg
        }
    except (SyntaxError, ValueError):
        return {}


def _after(report: Report, remedy: Remedy, again: Report) -> Remedy:
    """The remedy with what the run with it needed; as it was if that run shows nothing."""
    before, after = _peak(report), _peak(again)
    if before is None or after is None or (again.status != "ok" and not _is_past(again)):
        return remedy
    fits = again.status == "ok" and not _is_past(again)
    shown = with_peaks(remedy, before, after, enough=fits)
    return replace(shown, confirmed="run" if fits else "no")


def _is_past(report: Report) -> bool:
    return any(rank.went_past for rank in report.ranks)


def _peak(report: Report) -> int | None:
    return max((rank.peak_device_bytes or 0 for rank in report.ranks), default=None)
