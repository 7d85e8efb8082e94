"""Requests that failed at first, so that torch gave cached memory back and asked again."""

from __future__ import annotations

from oomdoctor.records.inside.snapshot import SnapshotRetries
from oomdoctor.snapshot.blocks import Lives
from oomdoctor.snapshot.reading.events import Events
from oomdoctor.snapshot.releases import releases_of


def retries_of(events: Events, lives: Lives) -> SnapshotRetries | None:
    """How often, what was given back, and how long that took; None if it never happened."""
    found = [(one.event, one.after) for one in releases_of(events, lives) if one.is_retry]
    if not found:
        return None
    released = sum(events.size[at] for first, end in found for at in range(first, end))
    timed = all(events.at_us[first] >= 0 for first, _ in found)
    spent = sum(events.at_us[end] - events.at_us[first] for first, end in found) / 1e6
    return SnapshotRetries(len(found), released, spent if timed else None)
