"""Snapshots that a command line names, read with a word about the progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.cli.streams import output
from oomdoctor.errors import usage_error

if TYPE_CHECKING:
    from oomdoctor.explain.evidence import SnapshotEvidence
    from oomdoctor.snapshot.history import History
    from oomdoctor.snapshot.reading.snapshot import Snapshot
    from oomdoctor.snapshot.replay.changes import Room


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
    from oomdoctor.snapshot.device_answer import device_of

    found = histories(read_file(file, quiet=quiet))
    return evidence_of(str(file), [device_of(history) for history in found.values()])


def rooms_named(names: Iterable[str]) -> list[Room]:
    """The cards or sizes of these names, with what torch can reserve there.

    Raises:
        OomDoctorError: a name is neither a card nor a size (exit 2).
    """
    try:
        return [_room(name) for name in names]
    except ValueError as error:
        raise usage_error("bad_option", f"--gpu: {error}", "oomdoctor gpus") from None


def all_rooms() -> list[Room]:
    """All known cards of NVIDIA."""
    from oomdoctor.system import catalogue

    return [_room(gpu.name) for gpu in catalogue.gpus() if gpu.vendor == "NVIDIA"]


def _room(name: str) -> Room:
    from oomdoctor.analysis.fit import USUAL_HEADROOM
    from oomdoctor.runs.devices.cards import card_named
    from oomdoctor.snapshot.replay.changes import Room

    target = card_named(name, USUAL_HEADROOM).target()
    return Room(target.name, target.limit_bytes)
