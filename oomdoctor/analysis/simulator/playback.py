"""Peaks at any micro-batch size from recorded steps, and whether they fit on a device.

Two recordings of the same structure give every other size. The order of events at full depth is
replayed through the model of the caching allocator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

from oomdoctor.analysis.allocator import (
    AllocatorSettings,
    CachingAllocator,
    Replay,
    replay,
)
from oomdoctor.analysis.allocator.sizes import round_size
from oomdoctor.analysis.simulator.depth import extend
from oomdoctor.analysis.simulator.tape import (
    Order,
    Tape,
    TapeBlock,
    grows_evenly,
    in_canonical_order,
    made_of,
    plain_order,
    same_structure,
    sizes_between,
    with_second_micro_step,
    with_steady_step,
)
from oomdoctor.records.measurement import PhaseMemory

Window = tuple[str, str]  # (step, phase)


class NewStructureError(Exception):
    """The recordings do not cover this micro-batch size; it must be recorded itself."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The events of a rung at one micro-batch size and full depth, with their bytes."""

    order: Order
    blocks: list[TapeBlock]
    sizes: list[int]
    events: list[tuple[int, int]]
    marks: list[tuple[int, str]]
    windows: list[Window]


@dataclass(frozen=True, slots=True)
class Categories:
    """The names of the categories that a rung's recordings use."""

    states: str
    gradients: str
    temporary: str
    inputs: str


class RecordedRung:
    """Recordings of a rung at some micro-batch sizes, and layouts of any size made from them.

    `depths` are (simulated, real) units by stack. A tape holds the inputs of `held` micro-batches.
    """

    def __init__(
        self, depths: Mapping[int, tuple[int, int]], categories: Categories, held: int = 1
    ) -> None:
        self.depths, self.categories, self.held = depths, categories, held
        self.tapes: dict[int, Tape] = {}  # of one micro-step
        self._taken: dict[int, Mapping[int, int]] = {}
        self._shallow: dict[tuple[int, bool], Tape] = {}
        self._orders: dict[tuple[int, bool], Order] = {}

    def add(
        self, size: int, tape: Tape, taken: Mapping[int, int], *, is_regular: bool = False
    ) -> None:
        """Add a recording of one micro-step; `taken` as in `with_second_micro_step`.

        Raises:
            IrregularError: its layers do not repeat; not checked if it `is_regular`.
        """
        self.tapes[size], self._taken[size] = tape, taken
        if not is_regular:
            self._order(size, accumulates=True)

    def is_line(self, low: int, high: int) -> bool:
        """Whether every size between two recorded ones lies on the line through them."""
        one, other = (self._tape(size, accumulates=True) for size in (low, high))
        return (
            len(one.blocks) == len(other.blocks)
            and same_structure(one, other)
            and grows_evenly(one, other, high - low)
        )

    def layout(
        self,
        size: int,
        line: tuple[int, int] | None = None,
        *,
        accumulates: bool,
        resized: Mapping[str, int] = MappingProxyType({}),
    ) -> Layout:
        """The events at a size, with one micro-step per step unless it accumulates.

        `line` are the two recorded sizes to go by if the size was not recorded itself. `resized`
        has the bytes of blocks, by operator, that differ from the tape.
        """
        low, high = line or (size, size)
        tape = self._tape(low, accumulates=accumulates)
        if low == high:
            sizes = [block.allocated for block in tape.blocks]
        else:
            other = self._tape(high, accumulates=accumulates)
            sizes = sizes_between(tape, low, other, high, size)
        for number, block in enumerate(tape.blocks):
            if block.operator in resized:
                sizes[number] = resized[block.operator]
            elif block.category == self.categories.inputs and not accumulates:
                sizes[number] //= self.held
        order = self._order(low, accumulates=accumulates)
        marks = order.marks(sizes)
        return Layout(
            order,
            tape.blocks,
            sizes,
            order.with_sizes(sizes),
            [(start, f"{step} {phase}") for start, step, phase in marks],
            [(step, phase) for _, step, phase in marks],
        )

    def _tape(self, size: int, *, accumulates: bool) -> Tape:
        """A recording with one micro-step, or with two."""
        if (size, accumulates) not in self._shallow:
            tape = self.tapes[size]
            if accumulates:
                tape = with_second_micro_step(tape, self._taken[size], self.categories.temporary)
            self._shallow[size, accumulates] = in_canonical_order(tape)
        return self._shallow[size, accumulates]

    def _order(self, size: int, *, accumulates: bool) -> Order:
        if (size, accumulates) not in self._orders:
            tape = self._tape(size, accumulates=accumulates)
            deep = any(simulated != real for simulated, real in self.depths.values())
            order = extend(tape, self.depths) if deep else plain_order(tape)
            self._orders[size, accumulates] = with_steady_step(
                order, tape.blocks, self.categories.states, self.categories.gradients
            )
        return self._orders[size, accumulates]


def play(layout: Layout, settings: AllocatorSettings, limit: int | None = None) -> Replay:
    """Replay the layout through the caching allocator; the process may reserve up to `limit`."""
    allocator = CachingAllocator(None, settings, limit_bytes=limit)
    return replay(layout.events, allocator, layout.marks)


def phase_memory(layout: Layout, played: Replay) -> dict[Window, PhaseMemory]:
    """The highest peaks of each (step, phase)."""
    worst: dict[Window, PhaseMemory] = {}
    for window, peak in zip(layout.windows, played.windows, strict=False):
        before = worst.get(window, PhaseMemory(0, 0))
        worst[window] = PhaseMemory(
            max(before.peak_allocated_bytes, peak.peak_allocated_bytes),
            max(before.peak_reserved_bytes or 0, peak.peak_reserved_bytes),
        )
    return worst


def phase_peak_positions(layout: Layout, *, rounded: bool = True) -> dict[Window, tuple[int, int]]:
    """(event of the order, bytes) of the highest sum of living blocks in each (step, phase).

    With sizes rounded as the allocator does by default, it is a lower bound of the allocated peak.
    """
    own = [size and round_size(size) for size in layout.sizes] if rounded else layout.sizes
    origin, events = layout.order.origin, layout.order.events
    live = list(accumulate(own[origin[e - 1]] if e > 0 else -own[origin[-e - 1]] for e in events))
    found: dict[Window, tuple[int, int]] = {}
    starts = [start for start, _, _ in layout.order.windows]
    for (start, step, phase), end in zip(
        layout.order.windows, [*starts[1:], len(events)], strict=True
    ):
        position = max(range(start, end), key=live.__getitem__, default=None)
        if position is not None and live[position] > found.get((step, phase), (0, -1))[1]:
            found[step, phase] = (position, live[position])
    return found


def alive_at(layout: Layout, position: int) -> Mapping[int, int]:
    """How many copies of each recorded block are alive after an event."""
    return made_of(layout.order, layout.sizes, layout.blocks, position)
