"""Snapshots that a command line names, read with a word about the progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.cli.streams import output

if TYPE_CHECKING:
    from oomdoctor.explain.evidence import SnapshotEvidence
    from oomdoctor.snapshot.history import History
    from oomdoctor.snapshot.reading.snapshot import Snapshot

_LARGE = 64 * 1024**2  # bytes; reading more takes a noticeable time


def read_file(file: Path, *, quiet: bool) -> Snapshot:
    """Read a snapshot; a large one says on stderr how far it is.

    Raises:
        OomDoctorError: it cannot be read, or is no snapshot.
    """
    from oomdoctor.snapshot.reading.snapshot import read_snapshot

    is_large = file.is_file() and file.stat().st_size > _LARGE
    return read_snapshot(file, say_tenths(file.name) if is_large and not quiet else None)


def histories(snapshot: Snapshot) -> dict[int, History]:
    """The devices of a snapshot by their index."""
    from oomdoctor.snapshot.history import history_of

    return {device.index: history_of(snapshot, device) for device in snapshot.devices}


def say_tenths(name: str) -> Callable[[float], None]:
    """A function that says how much was read, a line for each tenth."""
    told = 0

    def say(share: float) -> None:
        nonlocal told
        if share * 10 >= told + 1:
            told = int(share * 10)
            output.say_progress(f"{name}: {told * 10}% read")

    return say


def failed_requests(file: Path, *, quiet: bool) -> tuple[SnapshotEvidence, ...]:
    """The requests that failed in a snapshot, and what was held then.

    Raises:
        OomDoctorError: it cannot be read, or is no snapshot.
    """
    from oomdoctor.explain.evidence import evidence_of
    from oomdoctor.snapshot.answer import device_of

    found = histories(read_file(file, quiet=quiet))
    return evidence_of(str(file), [device_of(history) for history in found.values()])
