"""The report of a watched command, from what its processes left and what it printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from oomdoctor.commands.devices.cards import of_ranks
from oomdoctor.commands.run.case import Rendered, snapshot_name, write_case
from oomdoctor.commands.run.diagnosis import (
    diagnoses_of,
    joined,
    micro_batch_of,
    past_its_memory,
    snapshot_answer,
    with_snapshot,
)
from oomdoctor.commands.run.launched_step import step_of
from oomdoctor.commands.run.process.command import Ended
from oomdoctor.commands.run.rank_records import (
    device_of,
    failures,
    machine_of,
    ran_out,
    rank_memory,
    ranks_together,
    read_processes,
    usable_on,
)
from oomdoctor.commands.run.seen_outside import (
    Seen,
    cut_off,
    lines_from_outside,
    notes_from_outside,
    unless_stopped,
)
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.commands.run.smallest_card import as_on_a_larger_card, larger_batch, with_cards
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.explain.evidence import evidence_of
from oomdoctor.records.report.diagnosis import Diagnosis
from oomdoctor.records.report.report import Fault, Report, Status, bare_report
from oomdoctor.records.report.run import RankMemory, RunDevice, fullest
from oomdoctor.records.report.snapshot import SnapshotDevice
from oomdoctor.records.report.warnings import other_processes, warning


def report_of(
    request: WatchRequest,
    seen: Seen,
    started: datetime,
    elapsed_s: float,
    on_crash: Callable[[Exception], None],
    rendered: Rendered,
    joined: Callable[[Report], Report] | None = None,
) -> Report:
    """The report. If memory ran out, a case is written; `rendered` makes its page. `joined` makes
    one report of it and that of an earlier run.

    If the report cannot be made, `on_crash` gets the error, and the report has it and the command's
    exit code.
    """
    bare = _without_summary(request, seen, started, elapsed_s)
    try:
        processes = tuple(read_processes(seen.folder))
        seen = replace(seen, processes=processes, ended=unless_stopped(seen.ended, processes))
        bare = _without_summary(request, seen, started, elapsed_s)
        report = _with_summary(bare, request, seen)
        report = report if joined is None else joined(report)
        if report.status == "no" and request.keeps_case:
            return _with_case(report, request, seen, rendered)
        return report
    except Exception as error:  # noqa: BLE001 - how the command ended must not be lost
        on_crash(error)
        return replace(bare, errors=(_crashed(error, seen.ended.exit_code),))
    finally:
        _remove_live_logs(seen.folder)


def _with_case(report: Report, request: WatchRequest, seen: Seen, rendered: Rendered) -> Report:
    try:
        return write_case(report, seen, request.case, rendered)
    except OomDoctorError as error:
        fault = Fault(error.code, error.message, error.hint)
        return replace(report, errors=(*report.errors, fault))


def _remove_live_logs(folder: Path) -> None:
    """Remove the logs that were written for `watch`; a script's own log is left alone."""
    with suppress(Exception):  # a record may be damaged
        for process in read_processes(folder):
            log = process.record.get("live_log")
            if log:
                Path(log).unlink(missing_ok=True)


def _crashed(error: Exception, exit_code: int) -> Fault:
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return Fault(
        "summary_failed",
        f"the summary could not be made ({type(error).__name__}: {first}); the command ended with "
        f"exit code {exit_code}",
        "run it again with OOMDOCTOR_DEBUG=1 and report the traceback",
    )


def _without_summary(
    request: WatchRequest, seen: Seen, started: datetime, elapsed_s: float
) -> Report:
    """The report of a command of which nothing is known but how it ended."""
    ended = seen.ended
    bare = bare_report("run", _status(ended, ran_out=False), ended.exit_code, started, elapsed_s)
    return replace(
        bare,
        device=_device(request, seen),
        command_line=request.command,
        exit_code_of_command=ended.exit_code,
        host=seen.samples.host if request.gpus is None else None,
    )


def _device(request: WatchRequest, seen: Seen) -> RunDevice | None:
    if request.gpus is None:
        return device_of(seen.processes, seen.here)
    card = of_ranks(request.gpus.card, ranks_together(seen.processes))
    context = card.context.likely
    return RunDevice(
        kind="emulated",
        gpu_name=card.facts.name if card.facts is not None else None,
        gpus=request.gpus.count,
        total_bytes=card.total_bytes,
        compute_capability=card.capability,
        context_bytes=context,
        usable_bytes=card.total_bytes - context,
    )


def _with_summary(bare: Report, request: WatchRequest, seen: Seen) -> Report:
    """The report with what the processes left, and what the command printed."""
    ended, failed, device = seen.ended, seen.failed, _device(request, seen)
    ranks = as_on_a_larger_card(_ranks(request, seen, device), seen)
    ranks, first, answer = _with_evidence(ranks, seen)
    pictured = _pictured(ranks, seen) if answer is None else None
    outside = lines_from_outside(ended, seen.processes, seen.samples.host)
    on_gpu = ran_out(ranks)
    source = first.oom.snapshot if answer is not None and first and first.oom else None
    evidence = () if answer is None else evidence_of(source or "", (answer,))
    told: tuple[Diagnosis, ...] = ()
    if first is not None and first.went_past:
        answer, told = past_its_memory(first, answer, seen, request)
    elif on_gpu or failed:
        told = joined(diagnoses_of(seen.tail, request, outside, evidence), evidence)
    for_memory = on_gpu or _ended_for_memory(told, outside)
    report = replace(
        bare,
        status=_status(ended, ran_out=for_memory),
        exit_code=_exit_code(ended, ranks),
        device=device,
        diagnoses=told if for_memory or failed else (),
        ranks=ranks,
        source=source,
        versions=next((p.record["versions"] for p in seen.processes), {}),
        devices=tuple(filter(None, (answer or pictured,))),
        step=step_of(request, seen.folder, seen.processes),
        larger_batch=None if failed else larger_batch(ranks, _micro_batch(seen, request)),
    )
    notes = notes_from_outside(ended, seen.samples.host)
    warnings = [warning("ended_from_outside", said=note) for note in notes]
    if seen.waited_s is not None:
        warnings.append(warning("waited", seconds=round(seen.waited_s)))
    if failed and (killed := cut_off(seen.processes)):
        warnings.append(warning("cut_off", ranks=[str(rank) for rank in killed]))
    if request.gpus is None:
        machine = machine_of(seen.processes, seen.samples.gpus) if for_memory else None
        warnings += [] if ranks or failed else [warning("gpu_unused")]
        if machine is not None and machine.other_processes:
            warnings.append(other_processes(machine.other_processes))
        return replace(report, machine=machine, warnings=tuple(warnings))
    report = with_cards(report, request, seen)
    return replace(report, warnings=(*warnings, *report.warnings))


def _ranks(request: WatchRequest, seen: Seen, device: RunDevice | None) -> tuple[RankMemory, ...]:
    real = request.gpus is None
    context = device.context_bytes if device is not None else None

    def usable(device_record: dict[str, Any]) -> int | None:
        if real:
            return usable_on(device_record)
        assert device is not None and device.usable_bytes is not None and context is not None
        # Other processes on the same GPU leave less than the context alone does.
        return device.usable_bytes - max(0, int(device_record["outside_bytes"]) - context)

    measured = real and device is not None and device.kind == "real"
    return tuple(
        memory
        for process in seen.processes
        for memory in rank_memory(
            process,
            failed=seen.failed,
            usable_bytes=usable,
            context_bytes=context,
            evidence="measured" if measured else "emulated",
        )
    )


def _with_evidence(
    ranks: tuple[RankMemory, ...], seen: Seen
) -> tuple[tuple[RankMemory, ...], RankMemory | None, SnapshotDevice | None]:
    """The ranks with the names of their snapshots in the case, and what the first one shows.

    The first rank that ran out is the one to look at: others may fail because of it.
    """
    at = {
        (process.rank, bad["device"]): bad["at"]
        for process in seen.processes
        for bad in failures(process)
    }
    failed = [rank for rank in ranks if rank.outcome == "oom"]
    first = min(failed, key=lambda rank: at[rank.rank, rank.device], default=None)
    answer: SnapshotDevice | None = None
    with_names = []
    for rank in ranks:
        if rank.oom is not None and rank.oom.snapshot is not None:
            file, is_first = seen.folder / rank.oom.snapshot, rank is first
            name = snapshot_name(rank.rank, rank.device) if rank in failed else None
            rank = replace(rank, oom=replace(rank.oom, snapshot=name))
            if is_first and (answer := snapshot_answer(file, rank.device)) is not None:
                first = rank = with_snapshot(rank, answer)
        with_names.append(rank)
    return tuple(with_names), first, answer


def _pictured(ranks: Sequence[RankMemory], seen: Seen) -> SnapshotDevice | None:
    """What the fullest GPU held at its peak, if its process took a picture and none ran out."""
    worst = fullest(ranks)
    if worst is None or worst.outcome == "oom":
        return None
    record = next(p.record for p in seen.processes if p.record["pid"] == worst.pid)
    name = record["pictures"].get(str(worst.device))
    return None if name is None else snapshot_answer(seen.folder / name, worst.device)


def _ended_for_memory(told: Sequence[Diagnosis], outside: Sequence[str]) -> bool:
    """Whether the output, or what was seen from outside, says that memory ended the command.

    Signal 9 alone does not: anybody may have sent it.
    """
    if outside or not told:
        return bool(outside)
    first = told[0]
    enough = ("high",) if first.resource == "host" else ("high", "medium")
    sure = any(cause.confidence in enough for cause in first.causes)
    return first.is_oom and not first.survived and sure


def _micro_batch(seen: Seen, request: WatchRequest) -> int | None:
    """The micro-batch size, as the Trainer says it, or an option of the command."""
    told = {process.record.get("micro_batch_size") for process in seen.processes}
    (size,) = told if len(told) == 1 else (None,)
    return size or micro_batch_of(request.command)


def _exit_code(ended: Ended, ranks: Sequence[RankMemory]) -> int:
    """That of the command; the answer is no if it ended well past a GPU's memory."""
    past = any(rank.went_past for rank in ranks)
    return ExitCode.NO if past and not ended.exit_code else ended.exit_code


def _status(ended: Ended, *, ran_out: bool) -> Status:
    if ended.interrupted:
        return "interrupted"
    if ran_out:
        return "no"
    return "error" if ended.exit_code else "ok"
