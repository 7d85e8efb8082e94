"""Frames of snapshots that oomdoctor wrote itself: they name module, operator, phase and category.

A simulation has no lines of Python, but it knows what each block is for. So the stack of an event
has two frames: the operator in its module, and around it the phase with the category. Viewers of
others show them as they are.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

from oomdoctor.records.diagnosis import ReadPhase
from oomdoctor.records.inside.categories import BlockCategory
from oomdoctor.snapshot.reading.events import Frame

FILE = "<oomdoctor>"
_CATEGORIES: dict[str, BlockCategory] = {
    **{name: name for name in get_args(BlockCategory)},
    "inputs": "temporary",
}
_PHASES: tuple[ReadPhase, ...] = get_args(ReadPhase)


class Told(NamedTuple):
    """What the frames of an own snapshot say of a block."""

    phase: ReadPhase
    category: BlockCategory


def own_frames(module: str, operator: str, phase: str, category: str) -> tuple[Frame, ...]:
    """The frames of an event, innermost first."""
    return Frame(f"<{module or 'model'}>", 0, operator or category), Frame(
        FILE, 0, f"{phase} {category}"
    )


def told_by(frames: tuple[Frame, ...]) -> Told | None:
    """What the frames say; None if they are those of a program."""
    if not frames or frames[-1].file != FILE:
        return None
    phase, _, category = frames[-1].function.partition(" ")
    known: ReadPhase = next((name for name in _PHASES if name == phase), "unknown")
    return Told(known, _CATEGORIES.get(category, "other"))
