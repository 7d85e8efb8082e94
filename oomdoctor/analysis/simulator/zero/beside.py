"""What a simulated step holds besides weights, gradients and states, for the model of ZeRO."""

from __future__ import annotations

from oomdoctor.analysis.memory.zero.setting import Beside
from oomdoctor.analysis.simulator.playback import Layout
from oomdoctor.records.facts.categories import GRADIENTS, OPTIMIZER, WEIGHTS

_STATES = (WEIGHTS, GRADIENTS, OPTIMIZER)


def beside_of(layout: Layout, gradient_bytes: int) -> Beside:
    """The memory beside the model's states in the last step of a layout without accumulation.

    A gradient takes `gradient_bytes` for each element.
    """
    events, origin = layout.order.events, layout.order.origin
    windows = layout.order.windows
    last = windows[-1][1]
    ends = [start for start, _, _ in windows[1:]] + [len(events)]
    held = made = forward = 0
    kept: int | None = None
    curve: list[tuple[int, int]] = []
    for (start, step, phase), end in zip(windows, ends, strict=True):
        if step == last and phase == "forward" and kept is None:
            kept = held
        most = held
        for event in events[start:end]:
            source = origin[abs(event) - 1]
            size = layout.sizes[source] if event > 0 else -layout.sizes[source]
            category = layout.blocks[source].category
            if category not in _STATES:
                held += size
                most = max(most, held)
            elif event > 0 and category == GRADIENTS and step == last and phase == "backward":
                made += size
                curve.append((made // gradient_bytes, max(most, held + size)))
                most = held
        if step == last and phase == "forward":
            forward = max(forward, most)
        if step == last and phase == "backward":
            curve.append((made // gradient_bytes, most))
    return Beside(forward, tuple(curve), kept or 0)
