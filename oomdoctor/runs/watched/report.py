"""The report of a watched command, from what its processes left and what it printed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from oomdoctor.analysis.allocator import AllocatorSettings
from oomdoctor.analysis.allocator.settings import equal_blocks_of
from oomdoctor.records.facts.warnings import (
    gpu_unused,
    not_steady,
    one_rank,
    unknown_values,
)
from oomdoctor.records.report import Fault, Report, Status, Warn, bare_report
from oomdoctor.records.run import RankMemory, RunDevice, SmallestGpu
from oomdoctor.runs import emulated
from oomdoctor.runs.emulated import EmulatedGpus
from oomdoctor.runs.watched.command import Ended
from oomdoctor.runs.watched.diagnosis import about_a_value, diagnoses_of
from oomdoctor.runs.watched.processes import (
    Process,
    rank_memory,
    read_events,
    read_processes,
)
from oomdoctor.runs.watched.session import Weights
from oomdoctor.runs.watched.smallest import least_capability, next_larger, smallest_gpu
from oomdoctor.runs.watched.tail import Tail

_FEW_STEPS = 3


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What to run, on which GPUs, with which interpreter.

    `steps` is "steady" (stop once memory repeats), "all" or a number of optimizer steps. With
    `weights` "synthetic", `from_pretrained` needs no checkpoint. An unknown number that the command
    reads is `values`. `path` is the PATH of the command; None: ours.
    """

    command: tuple[str, ...]
    gpus: EmulatedGpus
    python: Path
    steps: str | int
    weights: Weights = "real"
    values: float | None = None
    path: str | None = None


def report_of(
    request: WatchRequest,
    folder: Path,
    ended: Ended,
    tail: Tail,
    started: datetime,
    elapsed_s: float,
    on_crash: Callable[[Exception], None],
) -> Report:
    """The report; `folder` is what the processes shared.

    If it cannot be made, `on_crash` gets the error, and the report has it and the command's exit
    code.
    """
    bare = _without_summary(request, ended, started, elapsed_s)
    try:
        return _with_summary(bare, request, folder, ended, tail)
    except Exception as error:  # noqa: BLE001 - how the command ended must not be lost
        on_crash(error)
        return replace(bare, errors=(_crashed(error, ended.exit_code),))


def _crashed(error: Exception, exit_code: int) -> Fault:
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return Fault(
        "summary_failed",
        f"the summary could not be made ({type(error).__name__}: {first}); the command ended with "
        f"exit code {exit_code}",
        "run it again with OOMDOCTOR_DEBUG=1 and report the traceback",
    )


def _without_summary(
    request: WatchRequest, ended: Ended, started: datetime, elapsed_s: float
) -> Report:
    """The report of a command of which nothing is known but how it ended."""
    card, context = request.gpus.card, request.gpus.card.context.likely
    return replace(
        bare_report("run", _status(ended, ran_out=False), ended.exit_code, started, elapsed_s),
        device=RunDevice(
            kind="emulated",
            gpu_name=card.facts.name if card.facts is not None else None,
            gpus=request.gpus.count,
            total_bytes=card.total_bytes,
            compute_capability=card.capability,
            context_bytes=context,
            usable_bytes=card.total_bytes - context,
        ),
        command_line=request.command,
        exit_code_of_command=ended.exit_code,
    )


def _with_summary(
    bare: Report, request: WatchRequest, folder: Path, ended: Ended, tail: Tail
) -> Report:
    """The report with what the processes left, and what the command printed."""
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
    ran_out = _ran_out(ranks)
    events = [one for process in processes for one in read_events(folder, process)]
    settings = _settings(processes)
    built_for = [word for one in processes for word in one.record["architectures"]]
    least = least_capability(card.capability, built_for)
    smallest = smallest_gpu(ranks, events, least, settings)
    return replace(
        bare,
        status=_status(ended, ran_out=ran_out),
        next_commands=_next(request, ranks, smallest, least, failed=failed),
        warnings=tuple(_warnings(request, processes, ranks, failed=failed)),
        diagnoses=diagnoses_of(tail, request.command) if ran_out or failed else (),
        ranks=ranks,
        smallest_gpu=smallest,
    )


def _next(
    request: WatchRequest,
    ranks: Sequence[RankMemory],
    smallest: SmallestGpu | None,
    least: tuple[int, int],
    *,
    failed: bool,
) -> tuple[str, ...]:
    """The same command on the smallest card that would do, or on one that may.

    If it failed for another reason with one rank, the same with all of them.
    """
    if failed and request.gpus.alone and not _ran_out(ranks):
        return (line_of(request, request.gpus.card.name, alone=False),)
    needed = [rank.oom.least_bytes for rank in ranks if rank.oom is not None]
    would_do = smallest.name if smallest is not None else None
    name = next_larger(max(needed), least) if needed else would_do
    if name is None or name == request.gpus.card.name:
        return ()
    return (line_of(request, name, alone=request.gpus.alone),)


def _ran_out(ranks: Sequence[RankMemory]) -> bool:
    return any(rank.outcome == "oom" for rank in ranks)


def line_of(request: WatchRequest, card: str, *, alone: bool) -> str:
    """The same request on another card, as a line to type; with `alone`, one rank runs."""
    words = ["--emulate", card if request.gpus.count == 1 else f"{request.gpus.count}x{card}"]
    words += ["--ranks", "1"] if alone else []
    words += ["--steps", str(request.steps)] if request.steps != "steady" else []
    words += ["--values", f"{request.values:g}"] if request.values is not None else []
    words += ["--weights", request.weights] if request.weights != "real" else []
    return shlex.join(["oomdoctor", "run", *words, "--", *request.command])


def _status(ended: Ended, *, ran_out: bool) -> Status:
    if ended.interrupted:
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
    found = emulated.warnings(request.gpus) + emulated.value_warnings(str(request.python))
    ranks_asked = max((one.record["world"] for one in processes), default=1)
    if request.gpus.alone and ranks_asked > 1:
        found.append(one_rank(ranks_asked, failed=failed and not _ran_out(ranks)))
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
