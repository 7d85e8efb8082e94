"""What a kernel does with memory while it runs, in order.

A step is the size of a block that it takes (unrounded bytes), or one of these. Blocks that are not
freed by a step die at the end, the last first, as C++ does. Results without a step are allocated
before all steps if none has one, else after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oomdoctor.analysis.simulator.card import RowSum

OTHERS = -1  # the position of all results that were not allocated before


class Scratch(int):
    """Bytes of a block that a kernel holds, with what `TapeBlock` says of them."""

    rows: int
    segments: int
    row_sum: RowSum | None

    def __new__(
        cls, size: int, rows: int = 0, segments: int = 0, row_sum: RowSum | None = None
    ) -> Scratch:
        block = super().__new__(cls, size)
        block.rows, block.segments, block.row_sum = rows, segments, row_sum
        return block


class Result(NamedTuple):
    """The result at this position is allocated."""

    position: int


class OnHost(NamedTuple):
    """The result at this position is no memory of the device."""

    position: int


class Freed(NamedTuple):
    """The block that was taken at this position, counted from 0, is freed."""

    taken: int


class Lasting(NamedTuple):
    """A block is taken that stays until the process ends."""

    name: str
    size: int


class Passing(NamedTuple):
    """A block with its own name is taken and freed at once."""

    name: str
    size: int


Step = int | Result | OnHost | Freed | Lasting | Passing


def with_workspaces(steps: Sequence[Step], own: Sequence[Lasting | Passing]) -> tuple[Step, ...]:
    """The steps with the workspaces of a library, taken last, when all other blocks are held."""
    end = len(steps)
    while end and isinstance(steps[end - 1], Freed):
        end -= 1
    return (*steps[:end], *own, *steps[end:])
