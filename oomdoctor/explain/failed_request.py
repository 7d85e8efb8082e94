"""A request that failed in a memory snapshot, as `explain` diagnoses a failure in a log."""

from __future__ import annotations

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.evidence import SnapshotEvidence
from oomdoctor.explain.training.known import Given
from oomdoctor.records.diagnosis import Diagnosis, Frame, Incident, LogFacts
from oomdoctor.records.measurement import OomEvent
from oomdoctor.units import format_bytes


def diagnosis_of(evidence: SnapshotEvidence) -> Diagnosis:
    """Causes and remedies of a request that a device could not meet."""
    device, oom = evidence.device, evidence.oom
    unallocated = oom.reserved_bytes - oom.allocated_bytes
    message = (
        f"GPU {device}: tried to allocate {format_bytes(oom.requested_bytes)} with "
        f"{format_bytes(oom.free_bytes)} free; {format_bytes(oom.allocated_bytes)} allocated, "
        f"{format_bytes(unallocated)} reserved but unallocated"
    )
    event = OomEvent(
        message=message,
        dialect="cuda_caching_allocator",
        phase=oom.phase,
        requested_bytes=oom.requested_bytes,
        free_bytes=oom.free_bytes,
        process_bytes=oom.reserved_bytes,
        allocated_bytes=oom.allocated_bytes,
        reserved_bytes=oom.reserved_bytes,
        reserved_unallocated_bytes=unallocated,
    )
    where = oom.where
    incident = Incident(
        event=event,
        look_alike=None,
        resource="gpu",
        frames=(),
        phase=oom.phase,
        where=None
        if where is None or where.module
        else Frame(where.file, where.line, where.function, None),
        lines=(message,),
        rank=None,
        line_number=0,
        step=None,
        survived=False,
    )
    given = Given(snapshots=(evidence,))
    return diagnose(evidence.source, (incident,), LogFacts(), given)[0]
