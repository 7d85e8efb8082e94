"""The answer of `diff` as CSV: a row for each number of each rung."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oomdoctor.records.history.difference import QuantityChange
from oomdoctor.records.report import Report

_RUNG = (
    *("key", "label", "label_after", "outcome_before", "outcome_after"),
    *("evidence_before", "evidence_after", "verdict"),
)
_NUMBER = (
    *("quantity", "before", "after", "difference", "relative", "uncertainty"),
    *("quantity_verdict", "at_micro_batch"),
)


def diff_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then the rows; a rung without numbers has one row."""
    yield [*_RUNG, *_NUMBER]
    for rung in report.diff.rungs if report.diff is not None else ():
        head = [getattr(rung, name) for name in _RUNG]
        for one in rung.quantities:
            yield [*head, *_numbers(one)]
        if not rung.quantities:
            yield [*head, *([None] * len(_NUMBER))]


def _numbers(one: QuantityChange) -> list[Any]:
    names = [name.replace("quantity_verdict", "verdict") for name in _NUMBER]
    return [getattr(one, name) for name in names]
