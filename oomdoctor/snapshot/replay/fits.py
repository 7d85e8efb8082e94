"""Whether a trace would have fitted a GPU: as it was, and with other settings or fewer rows."""

from __future__ import annotations

from typing import NamedTuple

from oomdoctor.records.diagnosis import Confidence
from oomdoctor.records.inside.snapshot import ReplayedRun, SnapshotFit
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.replay.half import half_sizes
from oomdoctor.snapshot.replay.replays import Runs

_LONG = "the trace is too long to replay it more often"


class Room(NamedTuple):
    """A GPU by name, or a size, and the bytes that torch can reserve there."""

    name: str
    bytes: int


def fit_of(history: History, runs: Runs, gpu: Room) -> SnapshotFit:
    """Whether the trace would have fitted a GPU."""
    if runs.note is not None:
        return SnapshotFit(gpu.name, gpu.bytes, note=runs.note)
    if not runs.can():
        return SnapshotFit(gpu.name, gpu.bytes, note=_LONG)
    as_it_was = runs.run(gpu.bytes)
    expandable = None
    if runs.can() and not runs.settings.expandable_segments:
        expandable = runs.run(gpu.bytes, expandable=True)
    half = with_half(history, runs, gpu.bytes)
    return SnapshotFit(
        gpu=gpu.name,
        capacity_bytes=gpu.bytes,
        as_it_was=as_it_was,
        with_expandable_segments=expandable,
        with_half_micro_batch=half,
        half_confidence=None if half is None else half_confidence(history),
    )


def half_confidence(history: History) -> Confidence:
    """How sure it is what shrinks with the micro-batch."""
    return "low" if history.lives.began_allocated else "medium"


def with_half(history: History, runs: Runs, capacity_bytes: int) -> ReplayedRun | None:
    """The trace with half of the micro-batch; None if it is not known what it would need.

    Of the two possible answers, the one that needs more.
    """
    sizes = half_sizes(history, runs.order)
    found = []
    for chosen in sizes or ():
        if not runs.can():
            return None
        found.append(runs.run(capacity_bytes, sizes=chosen))
    return found[0] if found and found[0].fits == found[-1].fits else None
