"""What the peaks of a simulated rung consist of."""

from __future__ import annotations

import re

from oomdoctor.analysis.simulator import playback
from oomdoctor.analysis.simulator.playback import Layout
from oomdoctor.records.measurement import Breakdown
from oomdoctor.records.simulation import Allocation, PhasePeak
from oomdoctor.worker.tracing.categories import CATEGORIES

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


def breakdown(layout: Layout, position: int, peak: int) -> Breakdown:
    """The peak by category; what rounding and unsplit blocks add is "other"."""
    parts = dict.fromkeys(CATEGORIES, 0)
    for block, count in playback.alive_at(layout, position).items():
        parts[layout.blocks[block].category] += count * layout.sizes[block]
    rest = peak - sum(parts.values())
    return Breakdown(
        weights_bytes=parts["weights"],
        gradients_bytes=parts["gradients"],
        optimizer_bytes=parts["optimizer"],
        activations_bytes=parts["activations"],
        logits_bytes=parts["logits"],
        other_bytes=parts["inputs"] + parts["temporary"] + rest,
    )
