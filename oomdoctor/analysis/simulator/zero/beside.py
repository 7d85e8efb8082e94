"""What a simulated step holds besides weights, gradients and states, for the model of ZeRO."""

from __future__ import annotations

from oomdoctor.analysis.memory.phases import Parts, size_of, together
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
    held, made = _Held(), 0
    forward: Parts = {}
    kept: Parts | None = None
    curve: list[tuple[int, Parts]] = []
    for (start, step, phase), end in zip(windows, ends, strict=True):
        if step == last and phase == "forward" and kept is None:
            kept = {name: size for name, size in held.parts.items() if size}
        held.begin()
        for event in events[start:end]:
            source = origin[abs(event) - 1]
            size = layout.sizes[source] if event > 0 else -layout.sizes[source]
            category = layout.blocks[source].category
            if category not in _STATES:
                held.change(category, size)
            elif event > 0 and category == GRADIENTS and step == last and phase == "backward":
                made += size
                making = together(held.parts, {GRADIENTS: size})
                curve.append((made // gradient_bytes, max(held.most(), making, key=size_of)))
                held.begin()
        if step == last and phase == "forward":
            forward = max(forward, held.most(), key=size_of)
        if step == last and phase == "backward":
            curve.append((made // gradient_bytes, held.most()))
    return Beside(forward, tuple(curve), kept or {})


class _Held:
    """What is held by category, and the most since `begin`.

    Invariant: `_most` is a copy of the highest parts, or None while the parts are the highest.
    """

    def __init__(self) -> None:
        self.parts: Parts = {}
        self._total = self._highest = 0
        self._most: Parts | None = None

    def begin(self) -> None:
        """The most begins at what is held now."""
        self._highest, self._most = self._total, None

    def change(self, category: str, size: int) -> None:
        """Bytes of a category are taken, or given back if `size` is negative."""
        if size < 0 and self._most is None:
            self._most = dict(self.parts)
        self.parts[category] = self.parts.get(category, 0) + size
        self._total += size
        if self._total >= self._highest:
            self._highest, self._most = self._total, None

    def most(self) -> Parts:
        """The highest parts since `begin`."""
        return dict(self.parts) if self._most is None else self._most
