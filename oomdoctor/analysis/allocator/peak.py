"""The peak of allocated memory without the pools: exact but for what is not worth splitting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from oomdoctor.analysis.allocator.records import Mark
from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.analysis.allocator.sizes import round_size
from oomdoctor.analysis.allocator.windows import Event, stretches

_DEFAULTS = AllocatorSettings()


@dataclass(frozen=True, slots=True)
class AllocatedPeaks:
    """Peaks in bytes: of all, and by the name of each window that has begun."""

    peak_bytes: int
    windows: tuple[tuple[str, int], ...]


def peak_allocated(
    events: Iterable[Event],
    marks: Iterable[Mark | tuple[int, str]] = (),
    settings: AllocatorSettings = _DEFAULTS,
) -> AllocatedPeaks:
    """The largest sum of rounded sizes, at any moment and in each window.

    A floor under `torch.cuda.max_memory_allocated`, which also counts what is left of a large
    block when it is not worth splitting: at most 1 MiB for each live block above 1 MiB, and none
    with expandable segments (unless `max_split_size_mb` is set). A replay tells it exactly.
    """
    divisions = settings.roundup_power2_divisions
    remaining = iter(events)
    live: dict[int, int] = {}
    total = overall = 0
    windows: list[tuple[str, int]] = []
    for name, count in stretches(marks):
        peak = total
        for block, size in islice(remaining, count):
            if size > 0:
                size = round_size(size, divisions) if divisions else (size + 511) & -512
                live[block] = size
                total += size
                if total > peak:
                    peak = total
            else:
                total -= live.pop(block)
        overall = max(overall, peak)
        if name is not None:
            windows.append((name, peak))
    return AllocatedPeaks(overall, tuple(windows))
