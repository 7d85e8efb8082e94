"""A recorded training step as births and deaths of blocks, and orders of events made from it.

A tape is recorded on a model with few layers and small batches. `extend` repeats the middle layers
up to the real depth, `with_second_micro_step` adds gradient accumulation, and `with_steady_step`
appends the step in which the optimizer states already exist. Nothing here runs a model. Sizes are
separate from the order of events, so one order serves every micro-batch size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

Region = tuple[int, int]  # (stack of repeating layers, unit within it)


# Up to this many rows the backward pass of an embedding works in place
# (EmbeddingBackwardKernel.cu, torch 1.11-2.13).
SORTED_ROWS = 3072


@dataclass(slots=True)
class TapeBlock:
    """One storage. `region` is the unit it belongs to, None outside the repeating layers.

    With `rows`, it is only allocated if these are more than `SORTED_ROWS`.
    """

    size: int
    category: str
    operator: str = ""
    module: str = ""
    region: Region | None = None
    rows: int = 0

    @property
    def allocated(self) -> int:
        """Bytes that are allocated at the recorded size of the micro-batch."""
        return 0 if 0 < self.rows <= SORTED_ROWS else self.size


@dataclass(slots=True)
class Tape:
    """Events in order: `+(i + 1)` is the birth of block i, `-(i + 1)` its death.

    `regions` has the unit of each event. `windows` are (first event, step, phase); a window ends
    where the next one begins.
    """

    blocks: list[TapeBlock] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    regions: list[Region | None] = field(default_factory=list)
    windows: list[tuple[int, str, str]] = field(default_factory=list)

    def born(self, block: TapeBlock, region: Region | None) -> int:
        """Append a birth; returns the block's index."""
        self.blocks.append(block)
        self.events.append(len(self.blocks))
        self.regions.append(region)
        return len(self.blocks) - 1

    def died(self, block: int, region: Region | None) -> None:
        self.events.append(-(block + 1))
        self.regions.append(region)

    def enter(self, step: str, phase: str) -> None:
        """Begin a window."""
        self.windows.append((len(self.events), step, phase))

    def spans(self) -> list[tuple[int, int, str, str]]:
        """(first event, end, step, phase) of each window."""
        ends = [window[0] for window in self.windows[1:]] + [len(self.events)]
        return [
            (start, end, step, phase)
            for (start, step, phase), end in zip(self.windows, ends, strict=True)
        ]


def in_canonical_order(tape: Tape) -> Tape:
    """The tape with consecutive deaths sorted by birth.

    Their recorded order is an accident of hash tables (autocast's cache, the engine's graph), and
    it does not change the free memory of an allocator.
    """
    breaks = {start for start, _, _ in tape.windows}
    tidy = Tape(blocks=tape.blocks, windows=tape.windows)
    pending: list[tuple[int, Region | None]] = []

    def flush() -> None:
        pending.sort(key=lambda death: -death[0])
        for event, region in pending:
            tidy.events.append(event)
            tidy.regions.append(region)
        pending.clear()

    for position, (event, region) in enumerate(zip(tape.events, tape.regions, strict=True)):
        if event > 0 or position in breaks:
            flush()
        if event > 0:
            tidy.events.append(event)
            tidy.regions.append(region)
        else:
            pending.append((event, region))
    flush()
    return tidy


def same_structure(one: Tape, other: Tape) -> bool:
    """Whether two tapes differ only in the sizes of their blocks."""
    return (
        one.events == other.events
        and one.regions == other.regions
        and one.windows == other.windows
        and all(
            a.operator == b.operator and a.category == b.category
            for a, b in zip(one.blocks, other.blocks, strict=True)
        )
    )


def grows_evenly(one: Tape, other: Tape, distance: int) -> bool:
    """Whether tapes of the same structure grow by a whole number of bytes a row.

    Their micro-batches are `distance` rows apart.
    """
    return all(
        (b.size - a.size) % distance == 0 and (b.rows - a.rows) % distance == 0
        for a, b in zip(one.blocks, other.blocks, strict=True)
    )


def sizes_between(one: Tape, batch: int, other: Tape, other_batch: int, wanted: int) -> list[int]:
    """The bytes of each block at a micro-batch size: the line through two tapes that grow evenly.

    Every size is a product of dimensions, at most one of which is the batch, so it is linear.
    """
    distance, rows = other_batch - batch, wanted - batch
    sizes = []
    for a, b in zip(one.blocks, other.blocks, strict=True):
        size = a.size if a.size == b.size else a.size + (b.size - a.size) // distance * rows
        if a.rows and a.rows + (b.rows - a.rows) // distance * rows <= SORTED_ROWS:
            size = 0
        sizes.append(size)
    return sizes


@dataclass(slots=True)
class Order:
    """Events of blocks copied from a tape: `origin[i]` is the tape's block of block i."""

    events: list[int]
    origin: list[int]
    windows: list[tuple[int, str, str]]

    def with_sizes(self, sizes: list[int]) -> list[tuple[int, int]]:
        """The events for the allocator: (block, bytes) for a birth, (block, -bytes) for a death."""
        own = [sizes[source] for source in self.origin]
        return [
            (event - 1, own[event - 1]) if event > 0 else (-event - 1, -own[-event - 1])
            for event in self.events
            if own[abs(event) - 1] > 0
        ]

    def marks(self, sizes: list[int]) -> list[tuple[int, str, str]]:
        """The windows, by position in the events of `with_sizes` (which omits empty blocks)."""
        kept, counted, windows = 0, 0, []
        for start, step, phase in self.windows:
            for event in self.events[counted:start]:
                kept += sizes[self.origin[abs(event) - 1]] > 0
            counted = start
            windows.append((kept, step, phase))
        return windows


def plain_order(tape: Tape) -> Order:
    """The tape as recorded."""
    return Order(list(tape.events), list(range(len(tape.blocks))), list(tape.windows))


def with_second_micro_step(tape: Tape, taken: Mapping[int, int], temporary: str) -> Tape:
    """The tape of a step with two micro-steps, from a tape with one.

    The second does what the first did, but its gradients are added to the existing ones: `taken`
    has, for the block of each gradient, the event before which it is added and dies. A copy of a
    block that outlives the micro-step dies with the original; a block that is never freed is not
    copied. `temporary` is the category of the second gradients.
    """
    spans = [span for span in tape.spans() if span[2] == "first"]
    start, end = spans[0][0], spans[1][1]
    deaths = {-event for event in tape.events if event < 0}
    due: dict[int, list[int]] = {}
    for block, position in taken.items():
        due.setdefault(position, []).append(block + 1)
    double = Tape(blocks=list(tape.blocks))
    copies: dict[int, int] = {}  # event of a birth -> index of the copy

    def second() -> None:
        for position in range(start, end + 1):
            for birth in due.get(position, ()):
                if birth in copies:
                    double.died(copies.pop(birth), tape.blocks[birth - 1].region)
            if position == end:
                return
            for window, step, phase in tape.windows:
                if window == position:
                    double.enter(step, phase)
            event, region = tape.events[position], tape.regions[position]
            block = tape.blocks[abs(event) - 1]
            if event < 0:
                if -event in copies:
                    double.died(copies.pop(-event), region)
            elif event - 1 in taken:
                copies[event] = double.born(replace(block, category=temporary), region)
            elif event in deaths:
                copies[event] = double.born(replace(block), region)

    for position, (event, region) in enumerate(zip(tape.events, tape.regions, strict=True)):
        if position == end:
            second()
        for window, step, phase in tape.windows:
            if window == position:
                double.enter(step, phase)
        double.events.append(event)
        double.regions.append(region)
        if position >= end and -event in copies:
            double.died(copies.pop(-event), region)
    return double


_BATCH = "batch"  # the window in which a step makes what its first micro-step needs


def with_steady_step(order: Order, blocks: list[TapeBlock], states: str, gradients: str) -> Order:
    """The order, followed by its training step again, now with existing optimizer states.

    `states` and `gradients` are the categories of optimizer states and gradients. A block that is
    never freed is not made again, except gradients, which `zero_grad` frees. What a step makes
    before its first micro-step is in the phase before it, as in a measurement: the load, or the end
    of the first step.
    """
    last: dict[int, int] = {}
    for position, event in enumerate(order.events):
        if event < 0:
            last[-event] = position
    ends = [window[0] for window in order.windows[1:]] + [len(order.events)]
    step_windows = [
        (start, end, order.windows[-1][1:] if step == _BATCH else ("steady", phase))
        for (start, step, phase), end in zip(order.windows, ends, strict=True)
        if step in (_BATCH, "first")
    ]
    events, origin = list(order.events), list(order.origin)
    load = order.windows[0][1:]
    windows = [(w[0], *(load if w[1] == _BATCH else w[1:])) for w in order.windows]
    renamed: dict[int, int] = {}
    for start, end, (step, phase) in step_windows:
        windows.append((len(events), step, phase))
        for event in order.events[start:end]:
            if event < 0:
                if -event in renamed:
                    events.append(-renamed[-event])
                continue
            block = blocks[order.origin[event - 1]]
            stays = event not in last
            if block.category == states or (stays and block.category != gradients):
                continue
            origin.append(order.origin[event - 1])
            renamed[event] = len(origin)
            events.append(len(origin))
    return Order(events, origin, windows)


def made_of(
    order: Order, sizes: list[int], blocks: list[TapeBlock], position: int
) -> Mapping[int, int]:
    """How many copies of each block of the tape are alive after the event at `position`."""
    alive: dict[int, int] = {}
    for event in order.events[: position + 1]:
        source = order.origin[abs(event) - 1]
        alive[source] = alive.get(source, 0) + (1 if event > 0 else -1)
    return {source: count for source, count in alive.items() if count and sizes[source]}
