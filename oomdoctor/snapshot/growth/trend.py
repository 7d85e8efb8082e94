"""Whether a series of levels grows for good.

Only what is never freed again counts: the least level that is still to come. So a buffer that is
emptied now and then does not grow, however full it is at the end; one that is emptied in part does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

LEAST_RISES = 5
_LARGEST_RISE = 0.5  # of the growth; one rise that is larger is something that is set up late
_STILL = (
    0.5  # of the usual growth that the last third has to have: a cache that fills up slows down
)
_FALLS = 2  # times the largest fall that the growth has to reach


class Rise(NamedTuple):
    """Growth of `total` from level `first` (an index) on; `at` are the indices that rose."""

    total: int
    first: int
    at: frozenset[int]


def rise_of(levels: Sequence[int]) -> Rise | None:
    """The growth of a series; None if it does not grow steadily to its end."""
    if len(levels) <= LEAST_RISES:
        return None
    stays = list(accumulate(reversed(levels), min))[::-1]
    total = stays[-1] - stays[0]
    rises = [after - before for before, after in pairwise(stays)]
    at = [index for index, rise in enumerate(rises) if rise]
    if len(at) < LEAST_RISES or max(rises) > _LARGEST_RISE * total:
        return None
    highest = accumulate(levels, max)
    largest_fall = max(high - level for high, level in zip(highest, levels, strict=True))
    if total < _FALLS * largest_fall:
        return None
    third = max(1, (len(levels) - 1 - at[0]) // 3)
    if stays[-1] - stays[-1 - third] < _STILL * total / 3:
        return None
    return Rise(total, at[0], frozenset(index + 1 for index in at))
