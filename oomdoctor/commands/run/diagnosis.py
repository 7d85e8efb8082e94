"""What the output of a failed command says: `explain`'s diagnosis, and values nobody computed.

What the snapshot of a failed request adds to it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from oomdoctor.commands.explain.applied import in_your_file
from oomdoctor.commands.explain.explained import with_model
from oomdoctor.commands.explain.given_file import of_command
from oomdoctor.commands.run.process.streams import Tail
from oomdoctor.commands.run.rank_records import Process
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.errors import OomDoctorError
from oomdoctor.explain.diagnose import diagnose, diagnosis_of
from oomdoctor.explain.evidence import SnapshotEvidence
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given, setup_of
from oomdoctor.records.report.diagnosis import Diagnosis, Incident, LogFacts
from oomdoctor.records.report.run import RankMemory
from oomdoctor.records.report.snapshot import SnapshotDevice
from oomdoctor.snapshot.device_answer import device_of
from oomdoctor.snapshot.history import History, history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
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
    return told_of(incidents, facts, request, Given(snapshots=evidence)) if incidents else ()


def told_of(
    incidents: tuple[Incident, ...], facts: LogFacts, request: WatchRequest, known: Given
) -> tuple[Diagnosis, ...]:
    """The diagnoses of failures of the command, with the lines of its files to change.

    Its script or file of settings is read as `explain --config` does. Options of the command, such
    as --per_device_train_batch_size 4, are settings of the training. `known` is what else is known.
    """
    typed_in = replace(known, settings=typed(request.command), settings_source="the command")
    python = str(request.python or sys.executable)
    given = with_model(of_command(typed_in, request.command, python), facts, "the output")
    found = diagnose(SOURCE, incidents, facts, given)
    if given.training is None:
        return found
    return tuple(in_your_file(one, given.training) for one in found)


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
    found = command_of(command)
    return options_of(command) if found is None else {**found.launcher, **found.options}


def snapshot_answer(path: Path, device: int) -> SnapshotDevice | None:
    """What a snapshot says of a device; None if it cannot be read."""
    history = history_in(path, device)
    return None if history is None else device_of(history)


def history_in(path: Path, device: int) -> History | None:
    """The history of a device in a snapshot; None if it cannot be read."""
    try:
        snapshot = read_snapshot(path)
    except OomDoctorError:
        return None
    found = next((one for one in snapshot.devices if one.index == device), None)
    return None if found is None else history_of(snapshot, found)


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
    if any(one.is_oom and one.resource == "gpu" for one in told):
        return tuple(told)
    return (*map(diagnosis_of, evidence), *told)
