"""Whether a trace would have fitted a GPU, and what would have let a failed request pass.

Each answer is by a replay. What the program would have asked for afterwards is not in the trace.

A trace has no shapes, so it does not say which blocks shrink with the micro-batch. What the layers
and the loss compute from the rows does; weights, gradients and states do not. Of others, it is not
known: a block as large as a weight, in whatever precision, may be a copy of it, and what a kernel
needs while it runs may depend on the GPU alone. So there are two answers, with and without those,
and only if both are the same there is one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from oomdoctor.records.facts.phases import FORWARD
from oomdoctor.records.job.measurement import BlockCategory
from oomdoctor.records.report.diagnosis import Confidence
from oomdoctor.records.report.run import Place
from oomdoctor.records.report.snapshot import (
    ReplayedRun,
    SnapshotChange,
    SnapshotDevice,
    SnapshotFit,
    SnapshotGrowth,
)
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.replays import Order, Runs
from oomdoctor.units import MIB

_TRIED_LINES = 4
_TRIED_ROOMS = 3
_SOME = "the trace is long, so not every change was tried"
# Without these, there is no training.
_NEEDED: frozenset[BlockCategory] = frozenset(("weights", "other"))
_LONG = "the trace is too long to replay it more often"
_SHRINK = frozenset(("activations", "logits"))
# A copy of a weight in another precision, from 4 bits to 4 bytes for each number.
_COPIES = tuple(Fraction(2) ** power for power in range(-3, 4))
_LEAST = 4096  # bytes of a weight; smaller ones say nothing


class _Group(NamedTuple):
    category: BlockCategory
    where: Place | None


def changes_of(
    history: History,
    runs: Runs,
    growth: Sequence[SnapshotGrowth],
    rooms: Callable[[], Sequence[Room]],
) -> tuple[tuple[SnapshotChange, ...], str | None]:
    """The changes, and why none or only some were tried.

    `rooms` gives GPUs that could be used instead, in any order.
    """
    if runs.note is not None:
        return (), runs.note
    capacity = runs.order.capacity_bytes
    assert capacity is not None
    changes: list[SnapshotChange] = []
    short = _short(runs, capacity)
    if not runs.settings.expandable_segments and runs.can():
        again = runs.run(capacity, expandable=True)
        if again.fits:
            setting = "expandable_segments:True"
            changes.append(SnapshotChange("setting", None, setting=setting))
    changes += [SnapshotChange("free", short)] if short is not None else []
    changes += _without_growth(history, runs, capacity, growth)
    changes += _without_a_line(history, runs, capacity, short or 0)
    half = with_half(history, runs, capacity)
    if half is not None and half.fits:
        changes.append(SnapshotChange("micro_batch", None, confidence=half_confidence(history)))
    changes += _other_gpu(runs, capacity, rooms)
    return tuple(changes), None if runs.can() else _SOME


def _short(runs: Runs, capacity: int) -> int | None:
    """The least bytes, in steps of 2 MiB, that would have had to be free in addition."""
    short = runs.run(capacity).short_bytes if runs.can() else None
    for _ in range(_TRIED_LINES):
        if short is None or not runs.can():
            return None
        rounded = -(-short // (2 * MIB)) * 2 * MIB
        again = runs.run(capacity + rounded)
        if again.fits:
            return rounded
        short = rounded + (again.short_bytes or 0)
    return None


def _without_growth(
    history: History, runs: Runs, capacity: int, growth: Sequence[SnapshotGrowth]
) -> Iterator[SnapshotChange]:
    lines = {held.where or held.library_where for kind in growth for held in kind.lines}
    if not lines or not runs.can():
        return
    gone = [b for b in _held(history, runs) if _line(history, b) in lines]
    if runs.run(capacity, without=gone).fits:
        size = sum(history.lives.blocks.size[block] for block in gone)
        yield SnapshotChange("growth", size, where=growth[0].where)


def _without_a_line(
    history: History, runs: Runs, capacity: int, short: int
) -> Iterator[SnapshotChange]:
    """The line with the fewest bytes without which the request passes."""
    groups: dict[_Group, list[int]] = defaultdict(list)
    for block in _held(history, runs):
        category = history.categories.of(block).category
        if category not in _NEEDED:
            groups[_Group(category, _line(history, block))].append(block)
    size = history.lives.blocks.size
    sums = {group: sum(size[block] for block in gone) for group, gone in groups.items()}
    enough = sorted((group for group in sums if sums[group] >= short), key=sums.__getitem__)
    for group in enough[:_TRIED_LINES]:
        if not runs.can():
            return
        if runs.run(capacity, without=groups[group]).fits:
            yield SnapshotChange("line", sums[group], category=group.category, where=group.where)
            return


def _other_gpu(
    runs: Runs, capacity: int, rooms: Callable[[], Sequence[Room]]
) -> Iterator[SnapshotChange]:
    larger = sorted((room for room in rooms() if room.bytes > capacity), key=lambda r: r.bytes)
    needed = runs.needed() if runs.can() and larger else 0
    # With less than without any limit it may do too, but with retries.
    near = [room for room in larger if room.bytes >= needed][:1]
    first = [room for room in larger if room.bytes < needed][:_TRIED_ROOMS]
    for room in (*first, *near):
        if not runs.can():
            return
        if runs.run(room.bytes).fits:
            yield SnapshotChange("gpu", room.bytes - capacity, gpu=room.name)
            return


def _held(history: History, runs: Runs) -> list[int]:
    """The blocks that were alive when the request failed."""
    assert runs.order.failed is not None
    return history.lives.blocks.alive(runs.order.failed)


def _line(history: History, block: int) -> Place | None:
    meaning = history.meanings.of(history.lives.blocks.stack[block])
    return meaning.where or meaning.line


def with_replays(
    history: History,
    answer: SnapshotDevice,
    asked: Sequence[Room] = (),
    others: Callable[[], Sequence[Room]] = tuple,
) -> SnapshotDevice:
    """Add whether the trace would have fitted the GPUs that were `asked` for, and what would have
    let a failed request pass; `others` gives the GPUs to suggest for that."""
    if not asked and answer.oom is None:
        return answer
    runs = Runs(history)
    fits = tuple(fit_of(history, runs, room) for room in asked)
    oom = answer.oom
    if oom is not None:
        growth = [
            growth_line
            for growth_line in (answer.growth, *answer.more_growth)
            if growth_line is not None
        ]
        changes, note = changes_of(history, runs, growth, others)
        oom = replace(oom, changes=changes, changes_note=note)
    return replace(answer, fits=fits, oom=oom)


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


def with_half(
    history: History, runs: Runs, capacity_bytes: int, divisor: int = 2
) -> ReplayedRun | None:
    """The trace with half of the micro-batch; None if it is not known what it would need.

    Of the two possible answers, the one that needs more. `divisor` takes another part than half.
    """
    sizes = half_sizes(history, runs.order, divisor)
    tries = []
    for chosen in sizes or ():
        if not runs.can():
            return None
        tries.append(runs.run(capacity_bytes, sizes=chosen))
    return tries[0] if tries and tries[0].fits == tries[-1].fits else None


def half_sizes(
    history: History, order: Order, divisor: int = 2
) -> tuple[list[int], list[int]] | None:
    """The sizes with half of the micro-batch (or another part): at most and at least that small.

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
            perhaps[block] = -(-size // divisor)
            if category in _SHRINK and phase in FORWARD and size not in weights:
                surely[block] = perhaps[block]
    return (surely, perhaps) if surely != order.sizes else None
