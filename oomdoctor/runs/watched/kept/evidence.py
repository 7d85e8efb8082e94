"""What the snapshot of a failed request adds to what the processes and the output say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from oomdoctor.errors import OomDoctorError
from oomdoctor.explain.evidence import SnapshotEvidence
from oomdoctor.explain.failed_request import diagnosis_of
from oomdoctor.records.diagnosis import Diagnosis
from oomdoctor.records.inside.run import RankMemory
from oomdoctor.records.inside.snapshot import SnapshotDevice
from oomdoctor.snapshot.device_answer import device_of
from oomdoctor.snapshot.history import history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot


def snapshot_answer(path: Path, device: int) -> SnapshotDevice | None:
    """What a snapshot says of a device; None if it cannot be read."""
    try:
        snapshot = read_snapshot(path)
    except OomDoctorError:
        return None
    found = next((one for one in snapshot.devices if one.index == device), None)
    return None if found is None else device_of(history_of(snapshot, found))


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
