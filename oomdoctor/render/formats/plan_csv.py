"""A plan for several cards, or a sweep, as CSV: one row a card and method, or a rung and value."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from oomdoctor.records.plan import CardPick, CardPlan, SweepAnswer
from oomdoctor.records.report import Report
from oomdoctor.render.formats.document import csv_cell

_CARD = ("name", "compute_capability", "memory_bytes", "total_bytes", "usable_bytes")
_LINE = ("card", "label", "micro_batch_size", "largest_fitting", "crossed_at", "reason")
_POINT = ("value", "least_bytes", "fits")
_PICK = tuple(field.name for field in fields(CardPick))


def plan_csv(report: Report) -> str:
    """The rows with a header; names are those of the keys in JSON, unknown is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if report.sweep is not None:
        writer.writerow([*_LINE, report.sweep.key, *_POINT[1:]])
        rows = _sweep_rows(report.sweep)
    else:
        writer.writerow([*_CARD, "method", *_PICK])
        rows = _card_rows(report.cards)
    writer.writerows([csv_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _card_rows(cards: tuple[CardPlan, ...]) -> Iterator[list[Any]]:
    for card in cards:
        for method in ("full", "lora", "qlora"):
            pick = getattr(card.picks, method)
            told = [getattr(pick, name) if pick is not None else None for name in _PICK]
            yield [*(getattr(card, name) for name in _CARD), method, *told]


def _sweep_rows(sweep: SweepAnswer) -> Iterator[list[Any]]:
    for line in sweep.lines:
        for peak in line.peaks:
            yield [
                *(getattr(line, name) for name in _LINE),
                *(getattr(peak, name) for name in _POINT),
            ]
