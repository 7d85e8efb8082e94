"""A plan as CSV: a row a card and method; of a sweep a row a rung and value; else a row a rung."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.phases import MEASURED
from oomdoctor.records.job.measurement import Breakdown, OomEvent, PhaseMemory
from oomdoctor.records.job.result import Failure, ProbeResult
from oomdoctor.records.report.plan import CardPick
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.searched import FewestLine, SolveLine
from oomdoctor.render.formats.csv_rows import named, record_rows, scalars
from oomdoctor.render.words import METHODS

_CARD = (
    *named(("name", "compute_capability", "memory_bytes"), "0."),
    *named(("total_bytes", "usable_bytes", "price_per_hour"), "0."),
    ("method", "1"),
    *named((field.name for field in fields(CardPick)), "2."),
)
_LINE = ("card", "label", "micro_batch_size", "largest_fitting", "crossed_at", "reason")


def survey_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then the rows; headings are the keys in JSON. A plan of several cards has no
    results.
    """
    if report.results or not report.cards:
        return result_rows(report)
    if report.fewest is not None:
        names = [field.name for field in fields(FewestLine) if field.name != "tries"]
        return record_rows(named(names), report.fewest.lines)
    if report.solve is not None:
        names = [field.name for field in fields(SolveLine)]
        lines = ((report.solve.key, line) for line in report.solve.lines)
        return record_rows([("solved", "0"), *named(names, "1.")], lines)
    if report.sweep is not None:
        swept = ((line, peak) for line in report.sweep.lines for peak in line.peaks)
        value = (report.sweep.key, "1.value")
        sizes = named(("least_bytes", "fits", "peak_device_bytes"), "1.")
        return record_rows([*named(_LINE, "0."), value, *sizes], swept)
    picks = (
        (card, method, getattr(card.picks, method)) for card in report.cards for method in METHODS
    )
    return record_rows(_CARD, picks)


def result_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then a row a result. A heading is the path of the key in JSON.

    `place` is the place in the ranking, from 1.
    """
    place = {key: number for number, key in enumerate(report.ranking, 1)}
    placed = ((place.get(result.key), result) for result in report.results)
    paths = [".".join(path) for path in _paths()]
    return record_rows([("place", "0"), *named(paths, "1.")], placed)


def _paths() -> Iterator[tuple[str, ...]]:
    """Every scalar of a result that makes a column, in the order of the records."""
    nested = {"config": TrainConfig, "breakdown": Breakdown, "oom": OomEvent, "failure": Failure}
    for field in fields(ProbeResult):
        if field.name in nested:
            for inner in fields(nested[field.name]):
                if inner.name != "log_tail":
                    yield field.name, inner.name
        elif field.name == "phases":
            for phase in MEASURED:
                for inner in fields(PhaseMemory):
                    yield field.name, phase, inner.name
        elif field.name == "notes" or field.name in scalars(ProbeResult):
            yield (field.name,)
