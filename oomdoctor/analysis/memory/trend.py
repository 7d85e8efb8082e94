"""Whether a series of sizes, one for each training step, grows steadily, and how fast.

A window of steps is cut into eight parts. It grows steadily if the smallest value of each part is
above that of the part before, by about the same amount each time, the second half grows about as
much as the first, the whole rise is larger than what values differ by within a part, and the end
is above all that was before the window. So noise, a warm-up, a saw-tooth and growth that levels off
are no growth.

Windows of 16, 32, 64, .. steps are looked at: a fast leak shows early in a short one, and one that
adds something at each evaluation shows in a long one. For the long ones only the least and the
greatest value of each block of steps is kept, so the memory of this class is small.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from oomdoctor.units import MIB

_PARTS = 8
_BLOCKS = 64  # that each level keeps
_SHORT_WINDOWS = (16, 32)  # blocks of single steps; all levels also look at all their blocks
_LEAST_RISE, _MOST_RISE = 0.25, 3.0  # of one part, as a share of the mean rise
_LEAST_SECOND, _MOST_SECOND = 0.75, 1.5  # rise of the second half, as a share of the first half's
_NOISE = 1 / 3  # the most that values in a part may differ by, as a share of the whole rise
_LEAST_BYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class Growth:
    """Steady growth by `bytes_per_step` from the step `since` to the step `until`."""

    bytes_per_step: float
    since: int
    until: int

    @property
    def rise_bytes(self) -> int:
        """How much it has grown by."""
        return round(self.bytes_per_step * (self.until - self.since))


@dataclass(frozen=True, slots=True)
class _Block:
    """Neighboring steps: their middle, the least and greatest value, and the greatest before."""

    middle: float
    least: int
    greatest: int
    before: int


class Trend:
    """One series of sizes in bytes. The first `skipped` steps, a warm-up, are left out."""

    def __init__(self, skipped: int = 2) -> None:
        self._left = skipped
        self._levels: list[deque[_Block]] = []
        self._counts: list[int] = []
        self._greatest = 0

    def add(self, step: int, size: int) -> Growth | None:
        """Take the size after the next step; the growth that shows with it, None if none does.

        If it shows in several windows, the longest counts.
        """
        if self._left > 0:
            self._left -= 1
            return None
        growth: Growth | None = None
        block, level = _Block(step, size, size, self._greatest), 0
        self._greatest = max(self._greatest, size)
        while True:
            if level == len(self._levels):
                self._levels.append(deque(maxlen=_BLOCKS))
                self._counts.append(0)
            blocks = self._levels[level]
            blocks.append(block)
            self._counts[level] += 1
            growth = self._look(level) or growth
            if self._counts[level] % 2:
                return growth
            block = _joined(blocks[-2], blocks[-1])
            level += 1

    def forget(self) -> None:
        """Begin again with the next step."""
        self._levels, self._counts = [], []
        self._greatest = 0

    def _look(self, level: int) -> Growth | None:
        blocks, count = self._levels[level], self._counts[level]
        windows = (*_SHORT_WINDOWS, _BLOCKS) if level == 0 else (_BLOCKS,)
        for size in reversed(windows):
            full = len(blocks) >= size and count % (size // _PARTS) == 0
            if full and (growth := _growth(list(blocks)[-size:])):
                return growth
        return None


def _joined(first: _Block, second: _Block) -> _Block:
    return _Block(
        middle=(first.middle + second.middle) / 2,
        least=min(first.least, second.least),
        greatest=max(first.greatest, second.greatest),
        before=first.before,
    )


def _growth(blocks: Sequence[_Block]) -> Growth | None:
    size = len(blocks) // _PARTS
    ends = (min(block.least for block in part) for part in (blocks[-size:], blocks[:size]))
    if next(ends) - next(ends) < _LEAST_BYTES:  # nearly always; this runs after every step
        return None
    parts = [blocks[at : at + size] for at in range(0, size * _PARTS, size)]
    floors = [min(block.least for block in part) for part in parts]
    rise = floors[-1] - floors[0]
    if max(block.greatest for block in parts[-1]) <= blocks[0].before:
        return None  # it was as much before and fell back, as a buffer does that is emptied
    mean = rise / (_PARTS - 1)
    rises = [after - before for before, after in pairwise(floors)]
    if min(rises) < _LEAST_RISE * mean or max(rises) > _MOST_RISE * mean:
        return None
    first, second = floors[3] - floors[0], floors[7] - floors[4]
    if not _LEAST_SECOND * first <= second <= _MOST_SECOND * first:
        return None
    noise = median(max(b.greatest for b in part) - min(b.least for b in part) for part in parts)
    if noise > _NOISE * rise:
        return None
    middles = [sum(block.middle for block in part) / size for part in parts]
    return Growth(
        bytes_per_step=rise / (middles[-1] - middles[0]),
        since=int(blocks[0].middle),
        until=round(blocks[-1].middle),
    )
