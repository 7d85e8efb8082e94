"""A recorded training step as births and deaths of blocks, and what follows from it.

A tape is recorded on a model with few layers and small batches. `extend` repeats the middle layers
up to the real depth, `steady_step` appends the step in which optimizer states exist already, and
`without_accumulation` cuts the second micro-step. Nothing here runs a model; sizes stay apart from
the order of events, so one order serves every micro-batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

Region = tuple[int, int]  # (stack of repeating layers, unit within it)


@dataclass(slots=True)
class TapeBlock:
    """One storage. `region` is the unit it belongs to, None outside of the repeating layers."""

    size: int
    category: str
    operator: str = ""
    module: str = ""
    region: Region | None = None


@dataclass(slots=True)
class Tape:
    """Events in order: `+(i + 1)` is the birth of block i, `-(i + 1)` its death.

    `regions` has the unit in which each event happened. `windows` are (first event, step, phase);
    a window ends where the next begins.
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
    """The tape with deaths that follow one another in the order of birth.

    Such an order is an accident of hash tables (autocast's cache, the engine's graph), and an
    allocator ends up with the same free memory whatever it is.
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
    """Whether two tapes differ in nothing but the sizes of their blocks."""
    return (
        one.events == other.events
        and one.regions == other.regions
        and one.windows == other.windows
        and all(
            a.operator == b.operator and a.category == b.category
            for a, b in zip(one.blocks, other.blocks, strict=True)
        )
    )


def sizes_between(
    one: Tape, batch: int, other: Tape, other_batch: int
) -> Callable[[int], list[int]]:
    """Block sizes over the micro-batch: the line through two tapes of the same structure.

    Every size is a product of dimensions of which at most one is the batch, so it is a line.
    """
    first = [block.size for block in one.blocks]
    slopes = [
        (b.size - size) / (other_batch - batch) for b, size in zip(other.blocks, first, strict=True)
    ]

    def at(wanted: int) -> list[int]:
        distance = wanted - batch
        return [size + round(slope * distance) for size, slope in zip(first, slopes, strict=True)]

    return at


@dataclass(slots=True)
class Order:
    """Events over blocks that stand for blocks of a tape: `origin[i]` is the tape's block of i."""

    events: list[int]
    origin: list[int]
    windows: list[tuple[int, str, str]]

    def with_sizes(self, sizes: list[int]) -> list[tuple[int, int]]:
        """(block, bytes) at a birth, (block, -bytes) at a death, for the allocator."""
        own = [sizes[source] for source in self.origin]
        return [
            (event - 1, own[event - 1]) if event > 0 else (-event - 1, -own[-event - 1])
            for event in self.events
            if own[abs(event) - 1] > 0
        ]

    def marks(self, sizes: list[int]) -> list[tuple[int, str, str]]:
        """The windows, counted in the events of `with_sizes` (empty blocks make none)."""
        kept, counted, windows = 0, 0, []
        for start, step, phase in self.windows:
            for event in self.events[counted:start]:
                kept += sizes[self.origin[abs(event) - 1]] > 0
            counted = start
            windows.append((kept, step, phase))
        return windows


def plain_order(tape: Tape) -> Order:
    """The tape as it was recorded."""
    return Order(list(tape.events), list(range(len(tape.blocks))), list(tape.windows))


def with_second_micro_step(tape: Tape, taken: Mapping[int, int], temporary: str) -> Tape:
    """The tape of a step with two micro-steps, from a tape with one.

    The second does what the first did, but its gradients are added to those that are there:
    `taken` has, for each gradient's block, the event before which that happens and it dies. A copy
    of a block that outlives the micro-step dies with the original; what is never freed was made
    once. `temporary` is the category of the second gradients.
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


_ONE_STEP = ("batch", "first")  # the windows that every step has


def with_steady_step(order: Order, blocks: list[TapeBlock], states: str, gradients: str) -> Order:
    """The order followed by its training step once more, optimizer states being there already.

    `states` and `gradients` are the categories of optimizer states and gradients. What lives beyond
    its own window was made once and is not made again, except gradients, which `zero_grad` frees.
    """
    last: dict[int, int] = {}
    for position, event in enumerate(order.events):
        if event < 0:
            last[-event] = position
    ends = [window[0] for window in order.windows[1:]] + [len(order.events)]
    step_windows = [
        (start, end, phase)
        for (start, step, phase), end in zip(order.windows, ends, strict=True)
        if step in _ONE_STEP
    ]
    events, origin = list(order.events), list(order.origin)
    windows = list(order.windows)
    renamed: dict[int, int] = {}
    for start, end, phase in step_windows:
        windows.append((len(events), "steady", phase))
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
    """Living blocks after the event at `position`: how many stand for each block of the tape."""
    alive: dict[int, int] = {}
    for event in order.events[: position + 1]:
        source = order.origin[abs(event) - 1]
        alive[source] = alive.get(source, 0) + (1 if event > 0 else -1)
    return {source: count for source, count in alive.items() if count and sizes[source]}
