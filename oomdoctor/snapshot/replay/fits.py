"""Whether a trace would have fitted a GPU: as it was, and with other settings or fewer rows.

Which blocks shrink with the micro-batch.

A trace has no shapes. What the layers and the loss compute from the rows does; weights, gradients
and states do not. Of others, it is not known: a block as large as a weight, in whatever precision,
may be a copy of it, and what a kernel needs while it runs may depend on the GPU alone. So there are
two answers, with and without those, and only if both are the same there is one.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from oomdoctor.records.diagnosis import Confidence
from oomdoctor.records.facts.phases import FORWARD
from oomdoctor.records.inside.snapshot import ReplayedRun, SnapshotFit
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.replay.order import Order
from oomdoctor.snapshot.replay.replays import Runs

_LONG = "the trace is too long to replay it more often"


_SHRINK = frozenset(("activations", "logits"))
# A copy of a weight in another precision, from 4 bits to 4 bytes for each number.
_COPIES = tuple(Fraction(2) ** power for power in range(-3, 4))
_LEAST = 4096  # bytes of a weight; smaller ones say nothing


class Room(NamedTuple):
    """A GPU by name, or a size, and the bytes that torch can reserve there."""

    name: str
    bytes: int


def fit_of(history: History, runs: Runs, gpu: Room) -> SnapshotFit:
    """Whether the trace would have fitted a GPU."""
    if runs.note is not None:
        return SnapshotFit(gpu.name, gpu.bytes, note=runs.note)
    if not runs.can():
        return SnapshotFit(gpu.name, gpu.bytes, note=_LONG)
    as_it_was = runs.run(gpu.bytes)
    expandable = None
    if runs.can() and not runs.settings.expandable_segments:
        expandable = runs.run(gpu.bytes, expandable=True)
    half = with_half(history, runs, gpu.bytes)
    return SnapshotFit(
        gpu=gpu.name,
        capacity_bytes=gpu.bytes,
        as_it_was=as_it_was,
        with_expandable_segments=expandable,
        with_half_micro_batch=half,
        half_confidence=None if half is None else half_confidence(history),
    )


def half_confidence(history: History) -> Confidence:
    """How sure it is what shrinks with the micro-batch."""
    return "low" if history.lives.began_allocated else "medium"


def with_half(history: History, runs: Runs, capacity_bytes: int) -> ReplayedRun | None:
    """The trace with half of the micro-batch; None if it is not known what it would need.

    Of the two possible answers, the one that needs more.
    """
    sizes = half_sizes(history, runs.order)
    found = []
    for chosen in sizes or ():
        if not runs.can():
            return None
        found.append(runs.run(capacity_bytes, sizes=chosen))
    return found[0] if found and found[0].fits == found[-1].fits else None


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
