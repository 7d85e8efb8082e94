"""What the peaks of a simulated rung consist of."""

from __future__ import annotations

import re

from oomdoctor.analysis.allocator import AllocatorSettings
from oomdoctor.analysis.simulator import playback
from oomdoctor.analysis.simulator.playback import Layout
from oomdoctor.analysis.simulator.recorded import Floors, Held, Played
from oomdoctor.records.facts.categories import CATEGORIES
from oomdoctor.records.simulation import Allocation, PhasePeak

_LARGEST = 15  # allocations to name at a peak


def phase_peaks(layout: Layout) -> tuple[PhasePeak, ...]:
    """The peak of each phase by category, with its largest allocations."""
    found = []
    for (step, phase), (position, size) in playback.phase_peak_positions(
        layout, rounded=False
    ).items():
        alive = playback.alive_at(layout, position)
        totals = dict.fromkeys(CATEGORIES, 0)
        grouped: dict[tuple[int, str, str, str], int] = {}
        for block, count in alive.items():
            entry = layout.blocks[block]
            totals[entry.category] += count * layout.sizes[block]
            module = re.sub(r"\.\d+\.", ".*.", entry.module + ".")[:-1]
            kind = (layout.sizes[block], entry.category, entry.operator, module)
            grouped[kind] = grouped.get(kind, 0) + count
        largest = sorted(grouped.items(), key=lambda item: -item[0][0] * item[1])[:_LARGEST]
        found.append(
            PhasePeak(
                step,
                phase,
                size,
                totals,
                tuple(
                    Allocation(bytes_, count, category, operator, module)
                    for (bytes_, category, operator, module), count in largest
                ),
            )
        )
    return tuple(found)


def floors(layout: Layout) -> Floors:
    """The lower bounds of the peaks, and what the highest of them consists of."""
    found = playback.floor_peaks(layout)
    highest = max(found.values(), key=lambda peak: peak.size)
    parts = dict.fromkeys(CATEGORIES, 0)
    for block, count in layout.outline.alive(highest).items():
        parts[layout.blocks[block].category] += count * layout.sizes[block]
    by_window = {window: peak.size for window, peak in found.items()}
    return Floors(highest.size, by_window, parts)


def played(layout: Layout, settings: AllocatorSettings) -> Played:
    """The peaks of a replay without a limit."""
    replayed = playback.play(layout, settings)
    memory = playback.phase_memory(layout, replayed)
    return Played(
        replayed.peak_allocated_bytes,
        replayed.peak_reserved_bytes,
        replayed.retries,
        {w: (m.peak_allocated_bytes, m.peak_reserved_bytes or 0) for w, m in memory.items()},
    )


def held(layout: Layout, settings: AllocatorSettings, limit: int) -> Held:
    """A replay on a device that lets the process reserve up to `limit` bytes."""
    replayed = playback.play(layout, settings, limit)
    last = layout.windows[len(replayed.windows) - 1][1]
    return Held(replayed.fits, replayed.peak_reserved_bytes, replayed.out_of_memory, last)
