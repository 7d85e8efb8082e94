"""The table of ranks, and of the steps of one rank."""

from __future__ import annotations

from itertools import groupby
from pathlib import PurePath

from oomdoctor.records.facts.outcomes import OUTCOME_WORDS
from oomdoctor.records.inside.run import RankMemory
from oomdoctor.render.blocks import Column, Grid
from oomdoctor.units import DASH, format_bytes

_COLUMNS = (
    Column("rank"),
    Column("outcome", tone=True),
    Column("allocated", 0, right=True),
    Column("reserved", 0, right=True),
    Column("on device", 3, right=True, detail="{} on the device"),
    Column("left", 4, right=True, detail="{} left"),
    Column("phase", 1, detail="in {}"),
    Column("module", 2, detail="module {}"),
    Column("line", 2, detail="line {}"),
    Column("library line", 5, detail="in the library: {}"),
)


def rank_grid(ranks: tuple[RankMemory, ...], *, together: bool) -> Grid:
    """A row a rank, at its peak; with `together`, ranks with equal rows share one."""
    several = len({rank.device for rank in ranks}) > 1 and len({rank.rank for rank in ranks}) == 1
    cells = [(f"GPU {r.device}" if several else str(r.rank), _cells(r)) for r in ranks]
    if not together:
        return Grid(_COLUMNS, tuple((name, *row) for name, row in cells))
    rows = []
    for row, group in groupby(cells, key=lambda cell: cell[1]):
        names = [name for name, _ in group]
        rows.append((names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}", *row))
    return Grid(_COLUMNS, tuple(rows))


def _cells(rank: RankMemory) -> tuple[str, ...]:
    below = rank.library_where
    return (
        OUTCOME_WORDS[rank.outcome],
        format_bytes(rank.peak_allocated_bytes),
        format_bytes(rank.peak_reserved_bytes),
        format_bytes(rank.peak_device_bytes),
        format_bytes(rank.headroom_bytes),
        rank.peak_phase if rank.peak_phase != "unknown" else DASH,
        rank.peak_module or DASH,
        f"{PurePath(rank.where.file).name}:{rank.where.line}" if rank.where else DASH,
        f"{PurePath(below.file).name}:{below.line}" if below else "",
    )


def step_grid(rank: RankMemory) -> Grid:
    """The peaks of each step of a rank, and what it left."""
    columns = (
        Column("step", right=True),
        Column("peak allocated", right=True),
        Column("peak reserved", right=True),
        Column("allocated after", right=True),
        Column("reserved after", right=True),
    )
    rows = tuple(
        (
            str(step.step),
            format_bytes(step.peak_allocated_bytes),
            format_bytes(step.peak_reserved_bytes),
            format_bytes(step.allocated_bytes),
            format_bytes(step.reserved_bytes),
        )
        for step in rank.steps_memory
    )
    return Grid(columns, rows)
