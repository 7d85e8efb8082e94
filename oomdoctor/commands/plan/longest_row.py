"""What a plan says about the rows of a data set: peaks by shape, and the longest row that fits.

It searches for that row on one card only, and for the rung that is best for typical rows (the 95th
percentile), because that is the rung one would choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oomdoctor.analysis.dataset_distribution import STEP_TOKENS, rows_above
from oomdoctor.analysis.dataset_verdict import best_of, cards_verdict, verdict
from oomdoctor.analysis.rank import rank
from oomdoctor.analysis.search.largest_value import Bracket, next_value
from oomdoctor.commands.devices.cards import Card
from oomdoctor.commands.jobs.simulators import Simulators
from oomdoctor.commands.ladder.dataset import at_length
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.tasks import Task
from oomdoctor.records.configuration.config import Rung
from oomdoctor.records.job.dataset import (
    LengthLimit,
    LengthLine,
    LengthPeak,
    LengthsAnswer,
    LengthShape,
    RowsAbove,
    ShapeName,
)
from oomdoctor.records.job.result import Attempt, ProbeResult

_MOST_ROUNDS = 16  # enough for any model; most searches end after four


def find_limits(known: Findings, simulators: Simulators) -> tuple[LengthLimit, ...]:
    """The longest rows of the best rung, at its micro-batch size and at 1, by simulation.

    Empty if rows are packed, if there are several cards, or if nothing was predicted.
    """
    asked = known.request.lengths
    if known.counted is None or asked is None or len(known.cards) != 1:
        return ()
    if asked.decides() == "packed":
        return ()
    card = known.cards[0]
    rung = _best(known, card)
    if rung is None:
        return ()
    size = _at(known, card, rung, "p95").micro_batch_size or 1
    brackets = {size: _bracket(known, card, rung, size) for size in sorted({1, size})[::-1]}
    steps = range(STEP_TOKENS, rung.config.sequence_length, STEP_TOKENS)
    for _ in range(_MOST_ROUNDS):
        wanted = {next_value(bracket, card.usable_bytes, steps) for bracket in brackets.values()}
        lengths = sorted(tokens for tokens in wanted if tokens is not None)
        found = list(_simulated(known, simulators, card, rung, lengths, tuple(sorted(brackets))))
        if not found:
            break
        for attempt in found:
            tried = int(attempt.config.micro_batch_size)
            brackets[tried] = _narrowed(brackets[tried], attempt)
    return tuple(_limit(known, card, rung, size, bracket) for size, bracket in brackets.items())


def lengths_answer(known: Findings) -> LengthsAnswer | None:
    """The distribution and its verdict for every rung and card; None without a data file."""
    asked = known.request.lengths
    if known.counted is None or asked is None:
        return None
    lengths = known.counted.distribution
    shape = next(shape for shape in known.shapes if shape.name == asked.decides())
    rows = {card.name: known.rows(card) for card in known.cards}
    if len(rows) == 1:
        (found,) = rows.values()
        sentences = verdict(lengths, shape, best_of(found, known.request.rank_by), known.limits)
    else:
        fitting = sum(any(row.surely_fits for row in found) for found in rows.values())
        sentences = cards_verdict(lengths, shape, fitting, len(rows))
    return LengthsAnswer(
        distribution=lengths,
        shapes=known.shapes,
        lines=tuple(
            _line(known, card, rung) for card in known.cards for rung in known.ladder(card)
        ),
        limits=known.limits,
        verdict=sentences,
    )


def _at(known: Findings, card: Card, rung: Rung, shape: ShapeName) -> ProbeResult:
    """The rung's row at one of the shapes."""
    (tokens,) = (found.tokens for found in known.shapes if found.name == shape)
    (variant,) = at_length((rung,), tokens)
    return known.row(card, variant)


def _best(known: Findings, card: Card) -> Rung | None:
    """The best rung for typical rows; if none fits, the one that is short by the least."""
    rungs = known.ladder(card)
    rows = [_at(known, card, rung, "p95") for rung in rungs]
    order = rank(tuple(rows), known.request.rank_by).order
    missed = [row for row in rows if row.missed_by_bytes is not None or row.borderline]
    leanest = min(missed, key=lambda row: row.missed_by_bytes or 0, default=None)
    best = order[0] if order else leanest.key if leanest is not None else None
    return next((r for r, row in zip(rungs, rows, strict=True) if row.key == best), None)


def _bracket(known: Findings, card: Card, rung: Rung, size: int) -> Bracket:
    """The bracket of the rung at a micro-batch size, from the simulated shapes."""
    low, low_bytes = 0, None
    high, high_bytes = rung.config.sequence_length, None
    for shape in sorted(known.shapes, key=lambda shape: shape.tokens):
        (variant,) = at_length((rung,), shape.tokens)
        for attempt in known.attempts.get((card.name, variant.config.key()), ()):
            if attempt.config.micro_batch_size != size or attempt.measurement is None:
                continue
            peak = attempt.measurement.deciding_peak_bytes()
            if attempt.surely_fits:
                low, low_bytes = shape.tokens, peak
            elif shape.tokens <= high:
                high, high_bytes = shape.tokens, peak
    return Bracket(low, low_bytes, high, high_bytes)


def _simulated(
    known: Findings,
    simulators: Simulators,
    card: Card,
    rung: Rung,
    lengths: Sequence[int],
    sizes: tuple[int, ...],
) -> Iterator[Attempt]:
    """The rung at some lengths; one simulation of each covers all micro-batch sizes."""
    tasks = [
        Task(variant, sizes, (card,))
        for tokens in lengths
        for variant in at_length((rung,), tokens)
    ]
    for ended in known.simulate(simulators, tasks, keep=False):
        yield from known.attempts_on(card, tasks[ended.number], ended)


def _narrowed(bracket: Bracket, attempt: Attempt) -> Bracket:
    """The bracket after an attempt, unless its length lies outside."""
    tokens = attempt.config.sequence_length
    if attempt.measurement is None or not bracket.low < tokens < bracket.high:
        return bracket
    peak = attempt.measurement.deciding_peak_bytes()
    return bracket.narrowed(tokens, attempt.surely_fits, peak)


def _limit(known: Findings, card: Card, rung: Rung, size: int, bracket: Bracket) -> LengthLimit:
    assert known.counted is not None
    fits_all = bracket.low >= rung.config.sequence_length
    tokens = bracket.low if fits_all else bracket.low // STEP_TOKENS * STEP_TOKENS
    above = RowsAbove(0, 0.0, ()) if fits_all else rows_above(known.counted, tokens)
    return LengthLimit(card.name, rung.config.key(), rung.label, size, tokens, above)


def _line(known: Findings, card: Card, rung: Rung) -> LengthLine:
    peaks = tuple(
        _peak(shape, _at(known, card, rung, shape.name), card.usable_bytes)
        for shape in known.shapes
    )
    return LengthLine(card.name, rung.config.key(), rung.label, peaks)


def _peak(shape: LengthShape, row: ProbeResult, usable_bytes: int) -> LengthPeak:
    fits, peak = None, None
    if row.outcome == "fits":
        fits, peak = True, row.deciding_peak_bytes()
    elif row.missed_by_bytes is not None:
        fits, peak = False, usable_bytes + row.missed_by_bytes
    size = row.micro_batch_size if fits is not None else None
    return LengthPeak(shape.name, shape.tokens, size, peak, fits)
