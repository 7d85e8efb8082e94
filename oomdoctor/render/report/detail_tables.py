"""The tables of a rung under `--verbose`: what was tried, the phases, what the peak consists of."""

from __future__ import annotations

from oomdoctor.records.facts.categories import TABLE
from oomdoctor.records.facts.outcomes import OUTCOME_WORDS
from oomdoctor.records.measurement import Breakdown, Measurement
from oomdoctor.records.result import ProbeResult
from oomdoctor.render.blocks import Column, Grid
from oomdoctor.render.words import estimate
from oomdoctor.units import format_bytes, format_percent


def try_table(result: ProbeResult) -> Grid:
    """Every micro-batch size that was tried."""
    rows = tuple(
        (
            str(attempt.micro_batch_size),
            OUTCOME_WORDS[attempt.outcome],
            "at least " * attempt.peak_is_lower_bound + format_bytes(attempt.peak_bytes),
            estimate(attempt.tokens_per_s, result),
            attempt.reason or "",
        )
        for attempt in result.tries
    )
    columns = (
        Column("micro-batch", right=True),
        Column("outcome", tone=True),
        Column("peak", 1, right=True, detail="peak {}"),
        Column("tokens/s", 2, right=True, detail="{} tokens/s"),
        Column("reason", 3, wraps=True),
    )
    return Grid(columns, rows)


def phase_table(measured: Measurement) -> Grid:
    """The peak of each phase. Optimizer states are created in the first step."""
    rows = []
    for name, worst in measured.phases.items():
        first, steady = measured.first_step.get(name), measured.steady.get(name)
        rows.append(
            (
                name,
                format_bytes(worst.peak_allocated_bytes),
                format_bytes(worst.peak_reserved_bytes),
                format_bytes(first.peak_allocated_bytes if first else None),
                format_bytes(steady.peak_allocated_bytes if steady else None),
            )
        )
    columns = (
        Column("phase"),
        Column("peak allocated", right=True),
        Column("reserved", 2, right=True, detail="reserved {}"),
        Column("first step", 1, right=True, detail="first step {}"),
        Column("later steps", 1, right=True, detail="later steps {}"),
    )
    return Grid(columns, tuple(rows))


def breakdown_table(parts: Breakdown) -> Grid:
    """What was in memory at the peak."""
    sizes = parts.sizes()
    total = sum(sizes.values())
    rows = tuple(
        (
            TABLE[name].words,
            format_bytes(size),
            format_percent(size / total if total else None),
        )
        for name, size in sizes.items()
    )
    return Grid((Column("at peak"), Column("size", right=True), Column("share", right=True)), rows)
