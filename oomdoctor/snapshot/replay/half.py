"""Which blocks shrink with the micro-batch.

A trace has no shapes. What the layers and the loss compute from the rows does; weights, gradients
and states do not. Of others, it is not known: a block as large as a weight, in whatever precision,
may be a copy of it, and what a kernel needs while it runs may depend on the GPU alone. So there are
two answers, with and without those, and only if both are the same there is one.
"""

from __future__ import annotations

from fractions import Fraction

from oomdoctor.records.facts.phases import FORWARD
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.replay.order import Order

_SHRINK = frozenset(("activations", "logits"))
# A copy of a weight in another precision, from 4 bits to 4 bytes for each number.
_COPIES = tuple(Fraction(2) ** power for power in range(-3, 4))
_LEAST = 4096  # bytes of a weight; smaller ones say nothing


def half_sizes(history: History, order: Order) -> tuple[list[int], list[int]] | None:
    """The sizes with half of the micro-batch: at most and at least that small.

    None if the trace does not tell what blocks are for.
    """
    if not history.meanings.has_frames:
        return None
    blocks, categories = history.lives.blocks, history.categories
    named: list[str] = [categories.of(block).category for block in range(len(blocks))]
    weights = {
        size * factor
        for block, size in enumerate(order.sizes[: len(blocks)])
        if named[block] == "weights" and size >= _LEAST
        for factor in _COPIES
    }
    surely, perhaps = list(order.sizes), list(order.sizes)
    stacks = list(blocks.stack)
    if order.failed is not None:
        stacks.append(history.device.events.stack[order.failed])
        named.append("activations")
    for block, (category, stack) in enumerate(zip(named, stacks, strict=True)):
        size, phase = order.sizes[block], history.meanings.phase(stack)
        of_the_rows = category in _SHRINK or category == "temporary"
        if of_the_rows and (phase in FORWARD or phase == "backward"):
            perhaps[block] = -(-size // 2)
            if category in _SHRINK and phase in FORWARD and size not in weights:
                surely[block] = perhaps[block]
    return (surely, perhaps) if surely != order.sizes else None
