"""The answers of `explain` as CSV: a row a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from oomdoctor.records.diagnosis import Diagnosis, Numbers
from oomdoctor.records.report import Report

_DIAGNOSIS = ("source", "is_oom", "resource", "dialect", "phase", "rank", "step", "survived")
_NUMBERS = tuple(field.name for field in fields(Numbers))


def diagnosis_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then the rows. Headings are the keys in JSON."""
    yield [*_DIAGNOSIS, *_NUMBERS, "cause", "confidence", "tensor", "remedy", "verdict"]
    yield from map(_row, report.diagnoses)


def _row(found: Diagnosis) -> list[Any]:
    cause = found.causes[0] if found.causes else None
    return [
        *(getattr(found, name) for name in _DIAGNOSIS),
        *(getattr(found.numbers, name) for name in _NUMBERS),
        cause and cause.cause,
        cause and cause.confidence,
        found.tensor and found.tensor.name,
        found.remedies[0].change if found.remedies else None,
        found.verdict,
    ]
