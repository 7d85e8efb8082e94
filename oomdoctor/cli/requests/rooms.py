"""GPUs that a snapshot is replayed on: those that a command line names, and all that are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from oomdoctor.errors import usage_error

if TYPE_CHECKING:
    from oomdoctor.snapshot.replay.fits import Room


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
    from oomdoctor.snapshot.replay.fits import Room

    target = card_named(name, USUAL_HEADROOM).target()
    return Room(target.name, target.limit_bytes)
