"""What the program was doing at each event, and its optimizer steps.

The phase is read from the Python frames of the event's stack. torch runs the backward pass in a
thread that has none: events without Python frames, in a trace whose other events have some, belong
to it.

Frames of snapshots that oomdoctor wrote itself: they name module, operator, phase and category.

A simulation has no lines of Python, but it knows what each block is for. So the stack of an event
has two frames: the operator in its module, and around it the phase with the category. Viewers of
others show them as they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from oomdoctor.analysis.frames import phase_of
from oomdoctor.records.job.measurement import BlockCategory
from oomdoctor.records.report import diagnosis
from oomdoctor.records.report.diagnosis import ReadPhase
from oomdoctor.records.report.run import Place
from oomdoctor.records.report.timeline import PHASES
from oomdoctor.snapshot.reading.events import ALLOC, NO_STACK, Events, Stacks
from oomdoctor.snapshot.reading.snapshot import DeviceSnapshot

_STEP = "Optimizer.step#"
_FEW = 0.02  # share of allocations with Python frames below which nothing can be told


FILE = "<oomdoctor>"
_CATEGORIES: dict[str, BlockCategory] = {
    **{name: name for name in get_args(BlockCategory)},
    "inputs": "temporary",
}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a stack says: the phase, and the innermost line of the user's own code."""

    phase: ReadPhase
    where: Place | None
    line: Place | None
    """The innermost line of Python, in whatever code."""
    depth: int
    """How many calls of `forward` are around it."""
    category: BlockCategory | None = None
    """What the block is for, in a snapshot that oomdoctor wrote."""


_NOTHING = Meaning("unknown", None, None, 0)


class Meanings:
    """What each stack of a snapshot says."""

    def __init__(self, stacks: Stacks, events: Events) -> None:
        self._stacks = stacks
        self._known: dict[int, Meaning] = {}
        allocations = [s for a, s in zip(events.action, events.stack, strict=True) if a == ALLOC]
        told = sum(self.of(stack).line is not None for stack in allocations)
        self.has_frames = bool(allocations) and told > _FEW * len(allocations)
        """Whether the history was recorded with Python stacks."""

    def of(self, stack: int) -> Meaning:
        """What the frames of a stack say."""
        if stack == NO_STACK:
            return _NOTHING
        if stack not in self._known:
            self._known[stack] = _meaning(self._stacks.of(stack))
        return self._known[stack]

    def frames(self, stack: int) -> tuple[Place, ...]:
        """The frames of a stack, innermost first."""
        return self._stacks.of(stack)

    def phase(self, stack: int) -> ReadPhase:
        """The phase of an event with this stack."""
        meaning = self.of(stack)
        if meaning.line is None and self.has_frames:
            return "backward"
        return meaning.phase


def _meaning(frames: tuple[Place, ...]) -> Meaning:
    told = told_by(frames)
    if told is not None:
        phase, category = told
        return Meaning(phase, None, frames[0], 0, category)
    python = [frame for frame in frames if frame.is_python]
    if not python:
        return _NOTHING
    outermost_first = tuple(
        diagnosis.Frame(f.file, f.line, f.function, None) for f in reversed(python)
    )
    phase, where = phase_of(outermost_first)
    own = None if where is None else Place(where.file, where.line or 0, where.function)
    depth = sum(frame.function == "forward" for frame in python)
    return Meaning(phase, own, python[0], depth)


def optimizer_steps(device: DeviceSnapshot, meanings: Meanings) -> list[tuple[int, int]]:
    """The optimizer steps as pairs of events: the first of each, and the first after it.

    torch notes them by name while a history is recorded (2.6 and later). Else they are runs of
    events in an optimizer.
    """
    noted = list(_noted_steps(device))
    return noted or list(_runs(device.events, meanings))


def _noted_steps(device: DeviceSnapshot) -> Iterator[tuple[int, int]]:
    begun = None
    for note in device.annotations:
        if not note.name.startswith(_STEP):
            continue
        at = bisect_left(device.events.at_us, note.at_us)
        if note.begins:
            begun = at
        elif begun is not None:
            yield begun, at
            begun = None


def _runs(events: Events, meanings: Meanings) -> Iterator[tuple[int, int]]:
    """From the first block of an optimizer to the first of what comes after it."""
    first = None
    for at, (action, stack) in enumerate(zip(events.action, events.stack, strict=True)):
        if action != ALLOC:
            continue
        if meanings.of(stack).phase == "optimizer":
            first = at if first is None else first
        elif first is not None and meanings.phase(stack) in _OF_A_STEP:
            yield first, at
            first = None
    if first is not None:
        yield first, len(events)


_OF_A_STEP = ("forward", "loss", "backward", "data")


def own_frames(module: str, operator: str, phase: str, category: str) -> tuple[Place, ...]:
    """The frames of an event, innermost first."""
    return Place(f"<{module or 'model'}>", 0, operator or category), Place(
        FILE, 0, f"{phase} {category}"
    )


def told_by(frames: tuple[Place, ...]) -> tuple[ReadPhase, BlockCategory] | None:
    """The phase and category of a block in an own snapshot; None in that of a program."""
    if not frames or frames[-1].file != FILE:
        return None
    phase, _, category = frames[-1].function.partition(" ")
    read_phase: ReadPhase = next((name for name in PHASES if name == phase), "unknown")
    return read_phase, _CATEGORIES.get(category, "other")
