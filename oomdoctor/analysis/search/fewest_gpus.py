"""The search for the fewest GPUs on which a rung fits.

What a GPU holds is a part that all hold, and a part that is split: peak = a + b / GPUs. Peaks that
were found give `a` and `b`, which name the next number to try. It never rises with the number of
GPUs, so the answer is where a number fits and the next smaller one does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from oomdoctor.records.report.searched import GpuTry

_MOST_TRIES = 8


@dataclass(slots=True)
class FewestGpus:
    """A search among ascending `numbers` of GPUs.

    `bound` is a lower bound of the peak on so many GPUs, in bytes. With `split` False, each GPU
    holds the same on any number of them.
    """

    numbers: Sequence[int]
    usable_bytes: int
    bound: Callable[[int], int]
    split: bool = True
    tries: dict[int, GpuTry] = field(default_factory=dict)

    @property
    def fewest(self) -> int | None:
        """The smallest number that was found to fit."""
        return min((n for n, tried in self.tries.items() if tried.fits), default=None)

    def next_try(self) -> int | None:
        """The next number to try; None once the search is over."""
        if len(self.tries) >= _MOST_TRIES:
            return None
        high = self.fewest
        low = max((n for n, tried in self.tries.items() if not tried.fits), default=0)
        left = [n for n in self.numbers if low < n and (high is None or n < high)]
        left = [n for n in left if self.bound(n) <= self.usable_bytes]
        if not left or (not self.split and self.tries):
            return None
        if not self.tries:
            return left[0]
        met = self._met()
        if met is None:
            # No number is enough by what is known: the largest one decides.
            return left[-1] if high is None else left[len(left) // 2]
        return min((n for n in left if n >= met), default=left[-1])

    def take(self, tried: GpuTry) -> None:
        """Keep what was found on a number of GPUs."""
        self.tries[tried.gpus] = tried

    def _met(self) -> int | None:
        """The number from which on the peak is within the usable memory; None if there is none."""
        points = sorted(
            (n, tried.peak_device_bytes)
            for n, tried in self.tries.items()
            if tried.peak_device_bytes is not None
        )
        if not points:
            return None
        (first, peak), *more = points
        # With one point, what the bound knows of is split, and the rest is not.
        shared = self.bound(first) * first
        if more:
            last, lower = more[-1]
            shared = max(shared, round((peak - lower) / (1 / first - 1 / last)))
        fixed = points[-1][1] - shared // points[-1][0]
        if fixed >= self.usable_bytes:
            return None
        return math.ceil(shared / (self.usable_bytes - fixed))
