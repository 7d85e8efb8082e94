"""What a plan says about the rows of a data set: peaks by shape, and the longest row that fits.

It searches for that row on one card only, and for the rung that is best for typical rows (the 95th
percentile), because that is the rung one would choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oomdoctor.analysis.dataset_distribution import STEP_TOKENS, rows_above
from oomdoctor.analysis.dataset_verdict import best_of, cards_verdict, verdict
from oomdoctor.analysis.ranking import rank
from oomdoctor.analysis.search.largest_value import LargestValue, Tried
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


def find_limits(findings: Findings, simulators: Simulators) -> tuple[LengthLimit, ...]:
    """The longest rows of the best rung, at its micro-batch size and at 1, by simulation.

    Empty if rows are packed, if there are several cards, or if nothing was predicted.
    """
    asked = findings.request.lengths
    if findings.counted is None or asked is None or len(findings.cards) != 1:
        return ()
    if asked.decides() == "packed":
        return ()
    card = findings.cards[0]
    rung = _best(findings, card)
    if rung is None:
        return ()
    size = _at(findings, card, rung, "p95").micro_batch_size or 1
    longest = rung.config.sequence_length
    steps = [*range(STEP_TOKENS, longest, STEP_TOKENS), longest]
    searches = {
        size: LargestValue(steps, card.usable_bytes, longest) for size in sorted({1, size})[::-1]
    }
    for shape in sorted(findings.shapes, key=lambda shape: shape.tokens):
        variant = at_length(rung, shape.tokens)
        _take(searches, findings.attempts.get((card.name, variant.config.key()), ()))
    for _ in range(_MOST_ROUNDS):
        wanted = {search.next_try() for search in searches.values()}
        lengths = sorted(tokens for tokens in wanted if tokens is not None)
        # One simulation of each length covers all micro-batch sizes.
        sizes = tuple(sorted(searches))
        tasks = [Task(at_length(rung, tokens), sizes, (card,)) for tokens in lengths]
        attempts = [
            attempt
            for ended in findings.simulate(simulators, tasks, keep=False)
            for attempt in findings.attempts_on(card, tasks[ended.number], ended)
        ]
        if not attempts:
            break
        _take(searches, attempts)
    return tuple(
        _limit(findings, card, rung, size, search.largest or 0) for size, search in searches.items()
    )


def lengths_answer(findings: Findings) -> LengthsAnswer | None:
    """The distribution and its verdict for every rung and card; None without a data file."""
    asked = findings.request.lengths
    if findings.counted is None or asked is None:
        return None
    lengths = findings.counted.distribution
    shape = next(shape for shape in findings.shapes if shape.name == asked.decides())
    rows = {card.name: findings.rows(card) for card in findings.cards}
    if len(rows) == 1:
        (of_card,) = rows.values()
        sentences = verdict(
            lengths, shape, best_of(of_card, findings.request.rank_by), findings.limits
        )
    else:
        fitting = sum(any(row.surely_fits for row in of_card) for of_card in rows.values())
        sentences = cards_verdict(lengths, shape, fitting, len(rows))
    return LengthsAnswer(
        distribution=lengths,
        shapes=findings.shapes,
        lines=tuple(
            _line(findings, card, rung) for card in findings.cards for rung in findings.ladder(card)
        ),
        limits=findings.limits,
        verdict=sentences,
    )


def _at(findings: Findings, card: Card, rung: Rung, shape: ShapeName) -> ProbeResult:
    """The rung's row at one of the shapes."""
    (tokens,) = (row_shape.tokens for row_shape in findings.shapes if row_shape.name == shape)
    return findings.row(card, at_length(rung, tokens))


def _best(findings: Findings, card: Card) -> Rung | None:
    """The best rung for typical rows; if none fits, the one that is short by the least."""
    rungs = findings.ladder(card)
    rows = [_at(findings, card, rung, "p95") for rung in rungs]
    order = rank(tuple(rows), findings.request.rank_by).order
    missed = [row for row in rows if row.missed_by_bytes is not None or row.borderline]
    leanest = min(missed, key=lambda row: row.missed_by_bytes or 0, default=None)
    best = order[0] if order else leanest.key if leanest is not None else None
    return next((r for r, row in zip(rungs, rows, strict=True) if row.key == best), None)


def _take(searches: Mapping[int, LargestValue], attempts: Iterable[Attempt]) -> None:
    """Give attempts to the searches at their micro-batch sizes."""
    for attempt in attempts:
        search = searches.get(int(attempt.config.micro_batch_size))
        if search is not None and attempt.measurement is not None:
            peak = attempt.measurement.deciding_peak_bytes()
            search.take(attempt.config.sequence_length, Tried(attempt.surely_fits, peak))


def _limit(findings: Findings, card: Card, rung: Rung, size: int, tokens: int) -> LengthLimit:
    assert findings.counted is not None
    fits_all = tokens >= rung.config.sequence_length
    tokens = tokens if fits_all else tokens // STEP_TOKENS * STEP_TOKENS
    above = RowsAbove(0, 0.0, ()) if fits_all else rows_above(findings.counted, tokens)
    return LengthLimit(card.name, rung.config.key(), rung.label, size, tokens, above)


def _line(findings: Findings, card: Card, rung: Rung) -> LengthLine:
    peaks = tuple(
        _peak(shape, _at(findings, card, rung, shape.name), card.usable_bytes)
        for shape in findings.shapes
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
