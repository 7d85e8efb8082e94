"""What a run tells that went on past the memory of its emulated GPU: the first request that a real
one could not have met, and remedies for all that the training needs beyond it."""

from __future__ import annotations

import linecache
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from oomdoctor.analysis.search.micro_batch import divisors
from oomdoctor.commands.run.diagnosis import history_in, micro_batch_of, told_of
from oomdoctor.commands.run.rank_records import failures
from oomdoctor.commands.run.seen_outside import Seen
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.explain.diagnose import incident_of
from oomdoctor.explain.evidence import SnapshotEvidence
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.remedies.wording import with_peaks
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.diagnosis import Diagnosis, Frame, Remedy
from oomdoctor.records.report.run import RankMemory
from oomdoctor.records.report.snapshot import ReplayedRun, SnapshotDevice, SnapshotOom
from oomdoctor.snapshot.changes import with_half
from oomdoctor.snapshot.replays import Runs, order_of

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
    process = next(one for one in seen.processes if one.record["pid"] == rank.pid)
    failed = next(one for one in failures(process)[::-1] if one["device"] == rank.device)
    oom = rank.oom
    context = (rank.peak_device_bytes or rank.peak_reserved_bytes) - rank.peak_reserved_bytes
    own, used = failed["reserved_bytes"] + context, oom.total_bytes - oom.free_bytes
    asked = SnapshotOom(
        requested_bytes=oom.requested_bytes,
        free_bytes=oom.free_bytes,
        allocated_bytes=failed["allocated_bytes"],
        reserved_bytes=failed["reserved_bytes"],
        phase=oom.phase,
        where=oom.where,
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
    known = Given(
        snapshots=(evidence,),
        micro_batch_size=process.record.get("micro_batch_size"),
        short_bytes=rank.short_bytes,
        batch_divisor=None if replayed is None else replayed.divisor,
    )
    told = told_of((incident,), facts, request, known)
    if told[0].remedies:
        remedies = [_confirmed(one, rank, context, replayed) for one in told[0].remedies]
        remedies.sort(key=lambda one: one.confirmed != "replay")
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
    history = history_in(file, rank.device)
    if history is None:
        return None
    runs = Runs(history, order_of(history))
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
        divisor,
        smaller,
        expandable if expandable is not None and expandable.fits else None,
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
            one["filename"],
            one["line"],
            one["name"],
            linecache.getline(one["filename"], one["line"]).strip() or None,
        )
        for one in reversed(frames)
    )
