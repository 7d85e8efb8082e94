"""What a picture of a memory snapshot shows: moments, blocks, stacks.

It is large, so it is kept in columns, and it is no part of a report. Sizes are in bytes. A moment
is the time after one event; blocks and marks refer to moments by their index.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from oomdoctor.records.facts.categories import STACKED
from oomdoctor.records.job.measurement import BlockCategory
from oomdoctor.records.report.diagnosis import Confidence, ReadPhase
from oomdoctor.records.report.run import Place

CATEGORIES: tuple[BlockCategory, ...] = tuple(sorted(get_args(BlockCategory), key=STACKED.index))
"""From the bottom to the top."""
PHASES: tuple[ReadPhase, ...] = get_args(ReadPhase)
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)
UNKNOWN = -1
"""The stack of a block that has none, the frame of a stack without a line of the user's."""


@dataclass(frozen=True, slots=True)
class TimelineStack:
    """Indices of frames, innermost first; `where` is the place of the user's own line in it."""

    frames: tuple[int, ...]
    where: int


@dataclass(frozen=True, slots=True)
class TimelineBlocks:
    """The blocks in the order of birth; all columns have one length.

    A block is there from the moment `born` until just before `died`, which is the number of moments
    if nothing freed it. `category` and `confidence` are indices of `CATEGORIES` and `CONFIDENCES`,
    `stack` is one of the timeline's stacks or `UNKNOWN`. `before` is 1 for a block that was there
    before the first event: if it was freed later, its stack was noted then.
    `maker` is 0 if that stack is not the one that made it.
    """

    born: array[int]
    died: array[int]
    size: array[int]
    stack: array[int]
    category: array[int]
    confidence: array[int]
    before: array[int]
    maker: array[int]

    def __len__(self) -> int:
        return len(self.born)


@dataclass(frozen=True, slots=True)
class TimelineFailure:
    """A request that failed at a moment; `free_bytes` is what the driver still had."""

    moment: int
    requested_bytes: int
    free_bytes: int
    stack: int


@dataclass(frozen=True, slots=True)
class TimelineDevice:
    """One device.

    The first moment is before the first event. `event` counts the events until a moment, `at_us` is
    microseconds since the first event, and `phase` an index of `PHASES`. `rest` has what is
    allocated besides `blocks`, by category; it is empty if all blocks are there. `steps` are pairs
    of moments: the first of an optimizer step, and the first after it.

    Without `traced` no allocation was recorded: `peak` is then just what is allocated at the end.
    `limit_bytes` is what the process could reserve in all when a request failed. `most_moments` is
    how many there were before the history was thinned, `unseen_blocks` how many blocks are in no
    moment that was kept, `small_blocks` how many are only in `rest`.
    """

    index: int
    events: int
    event: array[int]
    at_us: array[int]
    allocated: array[int]
    reserved: array[int]
    phase: array[int]
    blocks: TimelineBlocks
    rest: Mapping[BlockCategory, array[int]]
    steps: tuple[tuple[int, int], ...]
    peak: int
    traced: bool
    failures: tuple[TimelineFailure, ...]
    limit_bytes: int | None
    truncated: bool
    has_stacks: bool
    most_moments: int
    unseen_blocks: int
    small_blocks: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """All devices of a snapshot, and the stacks that their blocks refer to.

    `written_by` says how the allocations are known if torch did not write the snapshot.
    """

    source: str
    written_by: str | None
    devices: tuple[TimelineDevice, ...]
    frames: tuple[Place, ...]
    stacks: tuple[TimelineStack, ...]
