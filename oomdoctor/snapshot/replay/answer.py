"""The answer about a device with what replays of its trace say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from oomdoctor.records.inside.snapshot import SnapshotDevice
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.replay.changes import changes_of
from oomdoctor.snapshot.replay.fits import Room, fit_of
from oomdoctor.snapshot.replay.order import order_of
from oomdoctor.snapshot.replay.replays import Runs


def with_replays(
    history: History,
    answer: SnapshotDevice,
    asked: Sequence[Room] = (),
    others: Callable[[], Sequence[Room]] = tuple,
) -> SnapshotDevice:
    """Add whether the trace would have fitted the GPUs that were `asked` for, and what would have
    let a failed request pass; `others` gives the GPUs to suggest for that."""
    if not asked and answer.oom is None:
        return answer
    runs = Runs(history, order_of(history))
    fits = tuple(fit_of(history, runs, room) for room in asked)
    oom = answer.oom
    if oom is not None:
        growth = [one for one in (answer.growth, *answer.more_growth) if one is not None]
        changes, note = changes_of(history, runs, growth, others)
        oom = replace(oom, changes=changes, changes_note=note)
    return replace(answer, fits=fits, oom=oom)
