"""The micro-batch search on an emulated GPU that has room for any size, so each try gives a peak.

Memory as a function of the micro-batch size only bends upwards: between two sizes that were tried
it is at most on the straight line through them. So the smallest and the largest size come first,
and the line names the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oomdoctor.analysis.search.micro_batch import CLEAR_MARGIN

MAX_TRIES = 5


@dataclass(frozen=True, slots=True)
class Tried:
    """A size that ran: whether it fits, and its peak in bytes, None if it is not known."""

    fits: bool
    peak_bytes: int | None


def next_with_room(
    sizes: Sequence[int], tried: Mapping[int, Tried], usable_bytes: int, spared_bytes: int = 0
) -> int | None:
    """The next of the ascending `sizes` to try; None once the search is over.

    The largest size accumulates nothing, so it needs up to `spared_bytes` less than the others.
    """
    if not tried:
        return sizes[0]
    fitting = [size for size in tried if tried[size].fits]
    if not fitting and len(tried) == 1 and len(sizes) > 1:
        least = tried[sizes[0]].peak_bytes
        return sizes[-1] if least is not None and least - spared_bytes <= usable_bytes else None
    if not fitting or len(tried) >= MAX_TRIES:
        return None
    if sizes[-1] not in tried:
        return sizes[-1]
    low = max(fitting)
    high = min((size for size in tried if size > low), default=None)
    if high is None:
        return None
    between = [size for size in sizes if low < size < high]
    least, most = tried[low].peak_bytes, tried[high].peak_bytes
    if least is None or most is None:
        return between[len(between) // 2] if between else None
    slope = (most - least) / (high - low)
    limit = usable_bytes * (1 + CLEAR_MARGIN)
    open_sizes = [size for size in between if least + slope * (size - low) <= limit]
    return open_sizes[-1] if open_sizes else None
