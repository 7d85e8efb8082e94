"""What the output of a failed command says: `explain`'s diagnosis, and values nobody computed.

What the snapshot of a failed request adds to it. And what a run tells that went on past the memory
of its emulated GPU: the first request that a real one could not have met, and remedies for all that
the training needs beyond it.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from oomdoctor.analysis.search.micro_batch import divisors
from oomdoctor.commands.explain.applied import in_your_file
from oomdoctor.commands.explain.explained import of_command, with_model
from oomdoctor.commands.run.process.streams import Tail
from oomdoctor.commands.run.rank_records import Process, failures
from oomdoctor.commands.run.seen_outside import Seen
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.errors import OomDoctorError
from oomdoctor.explain.diagnose import diagnose, diagnosis_of, incident_of
from oomdoctor.explain.evidence import SnapshotEvidence
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.remedies.wording import with_peaks
from oomdoctor.explain.training.known import Given, setup_of
from oomdoctor.records.codec import shared
from oomdoctor.records.report.diagnosis import Diagnosis, Frame, Incident, LogFacts, Remedy
from oomdoctor.records.report.run import RankMemory
from oomdoctor.records.report.snapshot import ReplayedRun, SnapshotDevice, SnapshotOom
from oomdoctor.snapshot.changes import with_half
from oomdoctor.snapshot.device_answer import device_of
from oomdoctor.snapshot.history import History, history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.snapshot.replays import Runs
from oomdoctor.stacks.reading.command_line import command_of, options_of

SOURCE = "output"
_ABOUT_VALUES = ("AssertionError", "FloatingPointError", "ZeroDivisionError", "OverflowError")
_NOT_FINITE = re.compile(r"\b(?:nan|inf|infinite|finite|diverge[ds]?)\b", re.IGNORECASE)
_MOST_MESSAGE = 160


def diagnoses_of(
    tail: Tail,
    request: WatchRequest,
    outside: Sequence[str] = (),
    evidence: tuple[SnapshotEvidence, ...] = (),
) -> tuple[Diagnosis, ...]:
    """The diagnoses of what the command printed; empty if it says nothing about a failure.

    `outside` are lines about what ended it that it could not print, `evidence` is what a snapshot
    shows of a request that failed.
    """
    seen = [line.encode() + b"\n" for line in outside]
    incidents, facts = scan(lines(chain(tail.chunks(), [b"\n"], seen)))
    return _told_of(incidents, facts, request, Given(snapshots=evidence)) if incidents else ()


def _told_of(
    incidents: tuple[Incident, ...], facts: LogFacts, request: WatchRequest, context: Given
) -> tuple[Diagnosis, ...]:
    """The diagnoses of failures of the command, with the lines of its files to change.

    Its script or file of settings is read as `explain --config` does. Options of the command, such
    as --per_device_train_batch_size 4, are settings of the training. `context` is the rest.
    """
    typed_in = replace(context, settings=typed(request.command), settings_source="the command")
    python = str(request.python or sys.executable)
    given = with_model(of_command(typed_in, request.command, python), facts, "the output")
    diagnoses = diagnose(SOURCE, incidents, facts, given)
    if given.training is None:
        return diagnoses
    return tuple(in_your_file(diagnosis, given.training) for diagnosis in diagnoses)


def micro_batch_of(command: Sequence[str]) -> int | None:
    """The micro-batch size that an option of the command gives."""
    given = Given(settings=typed(command), settings_source="the command")
    return setup_of(given, {}).values.get("micro_batch_size")


def about_a_value(processes: Sequence[Process]) -> str | None:
    """The message of an exception that a value led to; None if none did."""
    for process in processes:
        error = process.record["exception"]
        if error is None or "OutOfMemory" in error["type"]:
            continue
        if error["type"] in _ABOUT_VALUES or _NOT_FINITE.search(error["message"]):
            return last_words(process)
    return None


def last_words(process: Process) -> str | None:
    """The exception that ended a process, in a line; None if none did."""
    error = process.record["exception"]
    if error is None:
        return None
    text = f"{error['type']}: {error['message']}".splitlines()[0].rstrip(": ")
    return text[:_MOST_MESSAGE]


def typed(command: Sequence[str]) -> Mapping[str, object]:
    """The options of a command, and of what launches it: settings of the training."""
    launch = command_of(command)
    return options_of(command) if launch is None else {**launch.launcher, **launch.options}


def snapshot_answer(path: Path, device: int) -> SnapshotDevice | None:
    """What a snapshot says of a device; None if it cannot be read."""
    history = _history_in(path, device)
    return None if history is None else device_of(history)


def _history_in(path: Path, device: int) -> History | None:
    """The history of a device in a snapshot; None if it cannot be read."""
    try:
        snapshot = read_snapshot(path)
    except OomDoctorError:
        return None
    of_device = next(
        (candidate for candidate in snapshot.devices if candidate.index == device), None
    )
    return None if of_device is None else history_of(snapshot, of_device)


def with_snapshot(rank: RankMemory, answer: SnapshotDevice) -> RankMemory:
    """The rank with the phase and the line that its snapshot knows and the process did not."""
    oom, failed = rank.oom, answer.oom
    if oom is None or failed is None:
        return rank
    phase = failed.phase if oom.phase == "unknown" else oom.phase
    where = oom.where or failed.where
    rank = replace(rank, oom=replace(oom, phase=phase, where=where))
    peak = answer.peak
    if rank.peak_phase == "unknown" and peak is not None:
        rank = replace(rank, peak_phase=peak.phase, where=rank.where or peak.where)
    return rank


def joined(
    told: Sequence[Diagnosis], evidence: Sequence[SnapshotEvidence]
) -> tuple[Diagnosis, ...]:
    """The diagnoses of the output, with the snapshot's own first if they say nothing about it.

    That is so where a launcher hides what its ranks print.
    """
    if any(diagnosis.is_oom and diagnosis.resource == "gpu" for diagnosis in told):
        return tuple(told)
    return (*map(diagnosis_of, evidence), *told)


_MOST_DIVISOR = 64  # where the micro-batch size is not known


def past_its_memory(
    rank: RankMemory, answer: SnapshotDevice | None, seen: Seen, request: WatchRequest
) -> tuple[SnapshotDevice | None, tuple[Diagnosis, ...]]:
    """What the snapshot of the rank, in the run's folder, says at its peak, and the diagnosis.

    Remedies that a replay of the snapshot can confirm come first once they are confirmed.
    """
    if answer is None or answer.peak is None or rank.oom is None:
        return answer, ()
    held, answer = answer.peak, replace(answer, oom=None)
    process = next(candidate for candidate in seen.processes if candidate.record["pid"] == rank.pid)
    failed = next(
        candidate for candidate in failures(process)[::-1] if candidate["device"] == rank.device
    )
    oom = rank.oom
    context = (rank.peak_device_bytes or rank.peak_reserved_bytes) - rank.peak_reserved_bytes
    own, used = failed["reserved_bytes"] + context, oom.total_bytes - oom.free_bytes
    asked = SnapshotOom(
        **shared(oom, SnapshotOom),
        allocated_bytes=failed["allocated_bytes"],
        reserved_bytes=failed["reserved_bytes"],
        held=held,
    )
    evidence = SnapshotEvidence(oom.snapshot or "", rank.device, asked, answer.growth)
    incident = incident_of(
        evidence,
        _frames(failed),
        step=oom.step,
        rank=rank.rank if len(seen.processes) > 1 else None,
        capacity_bytes=oom.total_bytes,
        process_bytes=own,
        other_processes_bytes=max(0, used - own),
    )
    batch = process.record.get("micro_batch_size") or micro_batch_of(request.command)
    replayed = (
        _replayed(rank, seen.folder / failed["snapshot"], batch) if failed["snapshot"] else None
    )
    _, facts = scan(lines(chain(seen.tail.chunks(), [b"\n"])))
    given = Given(
        snapshots=(evidence,),
        micro_batch_size=process.record.get("micro_batch_size"),
        short_bytes=rank.short_bytes,
        batch_divisor=None if replayed is None else replayed.divisor,
    )
    told = _told_of((incident,), facts, request, given)
    if told[0].remedies:
        remedies = [
            _confirmed(candidate, rank, context, replayed) for candidate in told[0].remedies
        ]
        remedies.sort(key=lambda candidate: candidate.confirmed != "replay")
        told = (replace(told[0], remedies=tuple(remedies)), *told[1:])
    return answer, told


class _Replayed(NamedTuple):
    """What let a replay of the whole run fit: a smaller part of the micro-batch, and expandable
    segments, with the reserved peaks; None where it did not."""

    divisor: int | None
    smaller: ReplayedRun | None
    expandable: ReplayedRun | None


def _replayed(rank: RankMemory, file: Path, batch: int | None) -> _Replayed | None:
    """Replays of a snapshot on the GPU as large as it is; None if they mean nothing."""
    history = _history_in(file, rank.device)
    if history is None:
        return None
    runs = Runs(history)
    if runs.note is not None or runs.order.failed is not None:
        return None
    room = rank.peak_reserved_bytes - (rank.short_bytes or 0)
    parts = divisors(batch or _MOST_DIVISOR)[1:]
    tried = ((part, with_half(history, runs, room, part)) for part in parts)
    fitting = ((part, run) for part, run in tried if run is not None and run.fits)
    divisor, smaller = next(fitting, (None, None))
    expandable = None
    if not runs.settings.expandable_segments and runs.can():
        expandable = runs.run(room, expandable=True)
    return _Replayed(
        divisor, smaller, expandable if expandable is not None and expandable.fits else None
    )


def _confirmed(
    remedy: Remedy, rank: RankMemory, context: int, replayed: _Replayed | None
) -> Remedy:
    runs: dict[str, ReplayedRun | None] = {}
    if replayed is not None:
        runs = {"smaller_batch": replayed.smaller, "expandable_segments": replayed.expandable}
    run = runs.get(remedy.key)
    if run is None:
        return replace(remedy, confirmed="no")
    before, after = rank.peak_reserved_bytes + context, run.peak_reserved_bytes + context
    return replace(with_peaks(remedy, before, after, enough=True), confirmed="replay")


def _frames(failed: dict[str, Any]) -> tuple[Frame, ...]:
    """The stack of a request, outermost first, with the code of its lines."""
    frames = failed["frames"] or failed["backward_frames"]
    return tuple(
        Frame(
            frame["filename"],
            frame["line"],
            frame["name"],
            linecache.getline(frame["filename"], frame["line"]).strip() or None,
        )
        for frame in reversed(frames)
    )
