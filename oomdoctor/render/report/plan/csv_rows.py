"""A plan as CSV: a row a card and method; of a sweep a row a rung and value; else a row a rung."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from oomdoctor.records.planned.fewest import FewestAnswer, FewestLine
from oomdoctor.records.planned.plan import CardPick, CardPlan, SweepAnswer
from oomdoctor.records.planned.solve import SolveAnswer, SolveLine
from oomdoctor.records.report import Report
from oomdoctor.render.report.results_csv import result_rows

_CARD = (
    "name",
    "compute_capability",
    "memory_bytes",
    "total_bytes",
    "usable_bytes",
    "price_per_hour",
)
_LINE = ("card", "label", "micro_batch_size", "largest_fitting", "crossed_at", "reason")
_POINT = ("value", "least_bytes", "fits", "peak_device_bytes")
_PICK = tuple(field.name for field in fields(CardPick))


def survey_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then the rows; headings are the keys in JSON. A plan of several cards has no
    results.
    """
    if report.results or not report.cards:
        return result_rows(report)
    if report.fewest is not None:
        return _fewest_rows(report.fewest)
    if report.solve is not None:
        return _solve_rows(report.solve)
    if report.sweep is not None:
        return _sweep_rows(report.sweep)
    return _card_rows(report.cards)


def _card_rows(cards: tuple[CardPlan, ...]) -> Iterator[list[Any]]:
    yield [*_CARD, "method", *_PICK]
    for card in cards:
        for method in ("full", "lora", "qlora"):
            pick = getattr(card.picks, method)
            found = [getattr(pick, name) if pick is not None else None for name in _PICK]
            yield [*(getattr(card, name) for name in _CARD), method, *found]


def _solve_rows(answer: SolveAnswer) -> Iterator[list[Any]]:
    names = [field.name for field in fields(SolveLine)]
    yield ["solved", *names]
    for line in answer.lines:
        yield [answer.key, *(getattr(line, name) for name in names)]


def _fewest_rows(answer: FewestAnswer) -> Iterator[list[Any]]:
    names = [field.name for field in fields(FewestLine) if field.name != "tries"]
    yield names
    for line in answer.lines:
        yield [getattr(line, name) for name in names]


def _sweep_rows(sweep: SweepAnswer) -> Iterator[list[Any]]:
    yield [*_LINE, sweep.key, *_POINT[1:]]
    for line in sweep.lines:
        for peak in line.peaks:
            yield [
                *(getattr(line, name) for name in _LINE),
                *(getattr(peak, name) for name in _POINT),
            ]
