"""A recorded training step as births and deaths of blocks, and orders of events made from it.

A tape is recorded on a model with few layers and small batches. `extend` repeats the middle layers
up to the real depth, and `steps` has what adds other steps. Nothing here runs a model. Sizes are
separate from the order of events, so one order serves every micro-batch size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from oomdoctor.analysis.simulator.card import Card, RowSum, scratch_bytes

Region = tuple[int, int]  # (stack of repeating layers, unit within it)
EMPTIED = "emptied"
"""The step of a window that begins when the allocator's cache was emptied during the load."""


# Up to this many rows the backward pass of an embedding works in place
# (EmbeddingBackwardKernel.cu, torch 1.11-2.13).
SORTED_ROWS = 3072
_ROWS_OF_A_PART = 10  # NROWS_PER_THREAD


@dataclass(slots=True)
class TapeBlock:
    """One storage. `region` is the unit it belongs to, None outside the repeating layers.

    With `rows`, it is only allocated if these are more than `SORTED_ROWS`. With `segments` too, it
    has an entry for each part of the sums over equal rows, of which there are at most as many as
    segments; `size` then counts an entry for each row. A block of a `row_sum` has no size here:
    that depends on the card. `stream` is the one that allocates it; 0 is the default stream.
    """

    size: int
    category: str
    operator: str = ""
    module: str = ""
    region: Region | None = None
    rows: int = 0
    row_sum: RowSum | None = None
    segments: int = 0
    stream: int = 0

    @property
    def allocated(self) -> int:
        """Bytes that are allocated at the recorded size of the micro-batch."""
        return self.of_rows(self.size, self.rows)

    def of_rows(self, size: int, rows: int) -> int:
        """Bytes that are allocated of `size` where the block has so many rows."""
        if not self.rows:
            return size
        if rows <= SORTED_ROWS:
            return 0
        if not self.segments:
            return size
        return size // rows * (rows // _ROWS_OF_A_PART + min(rows, self.segments))


@dataclass(slots=True)
class Tape:
    """Events in order: `+(i + 1)` is the birth of block i, `-(i + 1)` its death.

    `regions` has the unit of each event. `windows` are (first event, step, phase); a window ends
    where the next one begins. `carried` maps each block that a micro-step or a step finds from the
    one before, and frees, to the block that it leaves in its place. The first step finds nothing,
    so such a block has no bytes.
    """

    blocks: list[TapeBlock] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    regions: list[Region | None] = field(default_factory=list)
    windows: list[tuple[int, str, str]] = field(default_factory=list)
    carried: dict[int, int] = field(default_factory=dict)

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


def in_canonical_order(tape: Tape) -> Tape:
    """The tape with consecutive deaths sorted by birth.

    Their recorded order may be an accident of hash tables (autocast's cache, the engine's graph).
    It does not change the free memory of an allocator, but which of equal blocks it uses next.
    """
    breaks = {start for start, _, _ in tape.windows}
    # A run is a birth and the deaths that follow it, or those from the beginning of a window on.
    runs = accumulate(event > 0 or at in breaks for at, event in enumerate(tape.events))
    keys = [(run, -event) for run, event in zip(runs, tape.events, strict=True)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    events, regions = [tape.events[at] for at in order], [tape.regions[at] for at in order]
    return Tape(tape.blocks, events, regions, tape.windows, tape.carried)


def same_structure(first: Tape, second: Tape) -> bool:
    """Whether two tapes differ only in the sizes of their blocks."""
    return (
        first.events == second.events
        and first.regions == second.regions
        and first.windows == second.windows
        and first.carried == second.carried
        and all(
            a.operator == b.operator and a.category == b.category and a.stream == b.stream
            for a, b in zip(first.blocks, second.blocks, strict=True)
        )
    )


def grows_evenly(first: Tape, second: Tape, distance: int) -> bool:
    """Whether tapes of the same structure grow by a whole number of bytes a row.

    Their micro-batches are `distance` rows apart.
    """
    return all(
        a.segments == b.segments
        and (a.row_sum or ())[2:] == (b.row_sum or ())[2:]
        and not any((after - at) % distance for at, after in zip(_grown(a), _grown(b), strict=True))
        for a, b in zip(first.blocks, second.blocks, strict=True)
    )


def _grown(block: TapeBlock) -> tuple[int, ...]:
    """What of a block may grow with the micro-batch."""
    return block.size, block.rows, *(block.row_sum or ())[:2]


class Between(NamedTuple):
    """A micro-batch size, and the two recorded ones whose line it lies on."""

    low: int
    high: int
    size: int

    def at(self, first: int, second: int) -> int:
        """A number at the size, on the line through those at the recorded sizes.

        What grows is a product of dimensions, at most one of which is the batch, so it is linear.
        """
        if first == second:
            return first
        return first + (second - first) // (self.high - self.low) * (self.size - self.low)


def sizes_between(first: Tape, second: Tape, place: Between, card: Card) -> list[int]:
    """The bytes of each block at a micro-batch size, from two tapes that grow evenly.

    The `card` decides the scratch of row sums.
    """
    sizes = []
    for a, b in zip(first.blocks, second.blocks, strict=True):
        if a.row_sum is not None and b.row_sum is not None:
            results, terms = map(place.at, a.row_sum[:2], b.row_sum[:2])
            row_sum = a.row_sum._replace(results=results, terms=terms)
            sizes.append(scratch_bytes(row_sum, card))
        else:
            sizes.append(a.of_rows(place.at(a.size, b.size), place.at(a.rows, b.rows)))
    return sizes


@dataclass(slots=True)
class Order:
    """Events of blocks copied from a tape: `origin[i]` is the tape's block of block i.

    `extend` numbers blocks in the order of their birth. `repeats` are (first event, events, times):
    stretches without a window's begin that give birth to copies of the same blocks of the tape, and
    death to copies of the same ones, several times in a row. `emptied` has the first events of the
    windows that begin with an emptied cache (`torch.cuda.empty_cache`).
    """

    events: list[int]
    origin: list[int]
    windows: list[tuple[int, str, str]]
    repeats: list[tuple[int, int, int]] = field(default_factory=list)
    emptied: list[int] = field(default_factory=list)


def plain_order(tape: Tape) -> Order:
    """The tape as recorded."""
    return Order(list(tape.events), list(range(len(tape.blocks))), list(tape.windows))
