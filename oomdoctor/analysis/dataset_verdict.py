"""Sentences about the longest row of a data set, or packed rows: which rung can train on them."""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.analysis.ranking import rank
from oomdoctor.records.job.dataset import LengthDistribution, LengthLimit, LengthShape, RowsAbove
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import RankBy
from oomdoctor.units import format_bytes, format_percent


def best_of(rows: tuple[ProbeResult, ...], by: RankBy) -> ProbeResult | None:
    """The best rung at the rows that decide; None if none fits.

    If no speed can be trusted, it is the rung with the lowest peak.
    """
    order = rank(rows, by).order or rank(rows, "memory").order
    return next((row for row in rows if order and row.key == order[0]), None)


def verdict(
    lengths: LengthDistribution,
    shape: LengthShape,
    taken: ProbeResult | None,
    limits: Sequence[LengthLimit] = (),
) -> tuple[str, ...]:
    """Whether the rows of `shape` fit, and how many rows are too long for the best rung.

    The shape is that of the longest row, after truncation to the positions of the model, or of
    packed rows. `limits` belong to the rung that is best for typical rows, at some micro-batch
    sizes.
    """
    if shape.name == "packed":
        fit = "do not fit with any config" if taken is None else f"fit with {_with(taken)}"
        return _packed(lengths, shape, fit)
    row = _longest(lengths, shape.tokens)
    short = [limit for limit in limits if limit.above.rows]
    if not short:
        fits = "does not fit with any config" if taken is None else f"fits with {_with(taken)}"
        return (f"{row} {fits}",)
    first, *others = short
    if taken is None:
        sentences = [f"{row} does not fit: {first.label} {_up_to(first)}"]
    else:  # another rung can handle the row; this sentence is about the one that cannot
        sentences = [f"{row} does not fit with {first.label}, which {_up_to(first)}"]
    sentences += [f"{limit.label} {_up_to(limit)}" for limit in others]
    sentences += [f"that row fits with {_with(taken)}"] if taken is not None else []
    return tuple(sentences)


def cards_verdict(
    lengths: LengthDistribution, shape: LengthShape, fitting: int, cards: int
) -> tuple[str, ...]:
    """On how many cards the rows of `shape` fit; `shape` as in `verdict`."""
    where = f"on {fitting} of {cards} cards"
    if shape.name == "packed":
        return _packed(lengths, shape, f"fit {where}")
    return (f"{_longest(lengths, shape.tokens)} fits {where}",)


def _packed(lengths: LengthDistribution, shape: LengthShape, fit: str) -> tuple[str, ...]:
    """Whether packed rows fit, and what packing does to rows that are longer."""
    outcome, longest = f"rows packed to {shape.tokens:,} tokens {fit}", lengths.longest
    cuts = "packing cuts or splits longer rows; the longest,"
    cut = f"{cuts} row {longest.row:,}, has {longest.tokens:,} tokens"
    return (outcome, cut) if longest.tokens > shape.tokens else (outcome,)


def _longest(lengths: LengthDistribution, longest: int) -> str:
    size = f"{lengths.longest.tokens:,} tokens"
    if longest != lengths.longest.tokens:
        size += f", truncated to the model's {longest:,} positions"
    return f"row {lengths.longest.row:,} ({size})"


def _with(taken: ProbeResult) -> str:
    size = f" at micro-batch {taken.micro_batch_size}" if taken.micro_batch_size else ""
    return f"{taken.label}{size}, peak {format_bytes(taken.deciding_peak_bytes())}"


def _up_to(limit: LengthLimit) -> str:
    rows = f"rows up to {limit.tokens:,} tokens" if limit.tokens else "no row"
    return f"handles {rows} at micro-batch {limit.micro_batch_size}; {_longer(limit.above)}"


def _longer(above: RowsAbove) -> str:
    share = format_percent(above.share, 1 if above.share >= 0.001 else 3)
    first_rows = ", ".join(f"{row:,}" for row in above.first_rows)
    if above.rows == 1:
        return f"1 row ({share}) is longer: {first_rows}"
    first = "the first of them " if above.rows > len(above.first_rows) else ""
    return f"{above.rows:,} rows ({share}) are longer: {first}{first_rows}"
