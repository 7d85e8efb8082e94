"""Peaks at any micro-batch size from recorded steps, and whether they fit on a device.

Two recordings of the same structure give every other size. The order of events at full depth is
replayed through the model of the caching allocator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from oomdoctor.analysis.allocator.records import Mark, Replay
from oomdoctor.analysis.allocator.replay import replay_order
from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.analysis.allocator.sizes import round_size
from oomdoctor.analysis.memory.curve import Stretch, memory_curve, spans, stretches
from oomdoctor.analysis.simulator.card import Card
from oomdoctor.analysis.simulator.orders.depth import IrregularError, extend
from oomdoctor.analysis.simulator.orders.outline import Outline, outline_of
from oomdoctor.analysis.simulator.orders.steps import (
    with_inputs,
    with_second_micro_step,
    with_steady_step,
)
from oomdoctor.analysis.simulator.recorded import without_collection
from oomdoctor.analysis.simulator.tape import (
    Between,
    Order,
    Tape,
    TapeBlock,
    grows_evenly,
    in_canonical_order,
    plain_order,
    same_structure,
    sizes_between,
)
from oomdoctor.records.job.measurement import MemoryCurve

A100: Card = (8, 0)


class NewStructureError(Exception):
    """The recordings do not cover this micro-batch size; it must be recorded itself."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The events of a rung at one micro-batch size and full depth, with the bytes of its blocks."""

    order: Order
    outline: Outline
    blocks: list[TapeBlock]
    sizes: list[int]


class RecordedRung:
    """Recordings of a rung at some micro-batch sizes, and layouts of any size made from them.

    `depths` are (simulated, real) units by stack. A tape holds the inputs of one micro-batch.
    """

    def __init__(self, depths: Mapping[int, tuple[int, int]]) -> None:
        self.depths = depths
        self.tapes: dict[int, Tape] = {}  # of one micro-step
        self._taken: dict[int, Mapping[int, int]] = {}
        self._shallow: dict[tuple[int, bool], Tape] = {}
        self._differs: set[int] = set()  # sizes at which a second micro-step differs
        self._orders: dict[tuple[int, bool, int], tuple[Order, Outline]] = {}

    def add(
        self,
        size: int,
        tape: Tape,
        taken: Mapping[int, int],
        accumulated: Tape | None = None,
        *,
        is_regular: bool = False,
    ) -> None:
        """Add a recording of one micro-step; `taken` as in `with_second_micro_step`.

        `accumulated` is one of two micro-steps, if the second differs from the first.

        Raises:
            IrregularError: its layers do not repeat; not checked if it `is_regular`.
        """
        self.tapes[size], self._taken[size] = tape, taken
        if accumulated is not None:
            self._shallow[size, True] = accumulated
            self._differs.add(size)
        if not is_regular:
            self._order(size, accumulates=True)
            if accumulated is not None:
                self._order(size, accumulates=False)

    def is_line(self, low: int, high: int) -> bool:
        """Whether every size between two recorded ones lies on the line through them."""
        tapes = [
            (self._tape(low, accumulates=kind), self._tape(high, accumulates=kind))
            for kind in ((True, False) if self._differs else (True,))
        ]
        return all(
            len(first.blocks) == len(second.blocks)
            and same_structure(in_canonical_order(first), in_canonical_order(second))
            and grows_evenly(first, second, high - low)
            for first, second in tapes
        )

    @property
    def has_row_sums(self) -> bool:
        """Whether the scratch of a recording depends on the card."""
        return any(block.row_sum for tape in self.tapes.values() for block in tape.blocks)

    def layout(
        self,
        size: int,
        line: tuple[int, int] | None = None,
        *,
        accumulates: bool,
        held: int = 1,
        resized: Mapping[str, int] = MappingProxyType({}),
        card: Card = A100,
    ) -> Layout:
        """The events at a size, with one micro-step per step unless it accumulates.

        The device has the inputs of `held` micro-batches during a step. `line` are the two recorded
        sizes to go by if the size was not recorded itself. `resized` has the bytes of blocks, by
        operator, that differ from the tape. The rung runs on `card`.
        """
        low, high = line or (size, size)
        tape = self._tape(low, accumulates=accumulates)
        other = self._tape(high, accumulates=accumulates)
        sizes = sizes_between(tape, other, Between(low, high, size), card)
        for number, block in enumerate(tape.blocks):
            if block.operator in resized:
                sizes[number] = resized[block.operator]
        return Layout(*self._order(low, accumulates=accumulates, held=held), tape.blocks, sizes)

    def _tape(self, size: int, *, accumulates: bool) -> Tape:
        """A recording with one micro-step, or with two."""
        if (size, accumulates) not in self._shallow:
            tape = self.tapes[size]
            if accumulates:
                tape = with_second_micro_step(tape, self._taken[size])
            self._shallow[size, accumulates] = tape
        return self._shallow[size, accumulates]

    def _extended(self, tape: Tape) -> Order:
        """The tape at full depth; as recorded, if blocks die in the same order in each layer.

        That order decides which of equal blocks is used next (torch 2.12 and later).
        """
        try:
            return extend(tape, self.depths)
        except IrregularError:
            return extend(in_canonical_order(tape), self.depths)

    def _order(self, size: int, *, accumulates: bool, held: int = 1) -> tuple[Order, Outline]:
        if (size, accumulates, held) not in self._orders:
            tape = self._tape(size, accumulates=accumulates)
            if held > 1:
                order, _ = self._order(size, accumulates=accumulates)
                order = with_inputs(order, tape.blocks, held)
            else:
                deep = any(simulated != real for simulated, real in self.depths.values())
                order = self._extended(tape) if deep else plain_order(tape)
                order = with_steady_step(order, tape.blocks, tape.carried)
            self._orders[size, accumulates, held] = (order, outline_of(order))
        return self._orders[size, accumulates, held]


def play(
    layout: Layout,
    settings: AllocatorSettings,
    limit: int | None = None,
    parts: Sequence[Stretch] | None = None,
    *,
    rests: bool = False,
) -> Replay:
    """Replay the layout through the caching allocator; the process may reserve up to `limit`.

    The replay has the peaks of each window, or those of `parts`. If it `rests`, one more window
    has what is left after the last event, once the cache is emptied.
    """
    order, sizes = layout.order, layout.sizes
    own = list(map(sizes.__getitem__, order.origin))
    windows = order.windows
    if parts is not None:
        windows = [(part.first, part.step, part.phase) for part in parts]
    marks = [
        Mark(start, f"{step} {phase}", start in order.emptied) for start, step, phase in windows
    ]
    if rests:
        marks.append(Mark(len(order.events), "resting", empties=True))
    streams = None
    if any(block.stream for block in layout.blocks):
        of_blocks = [block.stream for block in layout.blocks]
        streams = list(map(of_blocks.__getitem__, order.origin))
    with without_collection():
        return replay_order(order.events, own, marks, settings, limit, streams)


def parts_of(order: Order) -> list[Stretch]:
    """The parts of the windows whose peaks are the moments of a curve, and the empty windows."""
    empty = [Stretch(*span) for span in spans(order.windows, len(order.events))]
    empty = [window for window in empty if window.first == window.end]
    parts = stretches(order.windows, len(order.events))
    return sorted([*parts, *empty], key=lambda part: (part.first, part.end))


def curve(layout: Layout, peaks: Sequence[int]) -> MemoryCurve:
    """How memory rises and falls; `peaks` are those of `parts_of` that have events."""
    order, sizes = layout.order, rounded_sizes(layout.sizes)
    changes = [
        sizes[order.origin[event - 1]] if event > 0 else -sizes[order.origin[-event - 1]]
        for event in order.events
    ]
    names = [layout.blocks[source].category for source in order.origin]
    categories = [names[abs(event) - 1] for event in order.events]
    return memory_curve(changes, categories, stretches(order.windows, len(order.events)), peaks)


def rounded_sizes(sizes: list[int]) -> list[int]:
    """The bytes of blocks, each rounded as the allocator does by default."""
    rounded = {size: size and round_size(size) for size in set(sizes)}
    return list(map(rounded.__getitem__, sizes))
