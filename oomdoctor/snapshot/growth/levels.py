"""How much each line of code has alive at given moments: bytes and blocks.

Bytes are those of the tensors. A block may have more, which differs from one time to the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from oomdoctor.snapshot.growth.moments import Moments
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.phases import Meaning

_SHARE = 0.25  # of the blocks of a line; a stack with fewer may be there once


@dataclass(slots=True)
class Line:
    """What the stacks with one meaning have alive: changes of bytes and blocks, by moment."""

    stacks: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # how many are left
    block: int = 0  # one of them
    bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    blocks: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, moment: int, size: int, count: int) -> None:
        self.bytes[moment] += size
        self.blocks[moment] += count

    def staying(self) -> list[int]:
        """The stacks of most of the blocks that are alive at the last moment."""
        least = _SHARE * max(self.stacks.values(), default=0)
        return [stack for stack, count in self.stacks.items() if count >= least]

    def ends_with(self) -> int:
        """Bytes at the last moment."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class Levels:
    """All lines with something alive at a moment, and the bytes born between two moments."""

    moments: int
    lines: dict[Meaning, Line]
    born: tuple[int, ...]

    def of(self, line: Line) -> tuple[list[int], list[int]]:
        """The bytes and the blocks of a line at each moment."""
        return self._series(line.bytes), self._series(line.blocks)

    def _series(self, changes: dict[int, int]) -> list[int]:
        return list(accumulate(changes.get(moment, 0) for moment in range(self.moments)))


def levels_of(history: History, moments: Moments, among: Iterable[int]) -> Levels:
    """The levels before each of these events, of the blocks `among` all."""
    events, blocks, meanings = moments.events, history.lives.blocks, history.meanings
    first, last, count = events[0], events[-1], len(events)
    lines: dict[Meaning, Line] = {}
    born_between = [0] * count
    for block in among:
        born, died = blocks.born[block], blocks.died[block]
        if born >= last or died < first:
            continue
        size, stack = history.tensor_bytes(block), blocks.stack[block]
        since = bisect_left(events, born + 1)
        born_between[since] += size
        until = bisect_left(events, died + 1, since)
        if since == until:
            continue
        line = lines.setdefault(meanings.of(stack), Line())
        line.add(since, size, 1)
        if until < count:
            line.add(until, -size, -1)
        else:
            line.stacks[stack] += 1
            line.block = block
    return Levels(count, lines, tuple(born_between[1:]))
