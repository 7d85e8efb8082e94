"""A plan as CSV: a row a card and method; of a sweep a row a rung and value; else a row a rung."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.facts.phases import MEASURED
from oomdoctor.records.measurement import Breakdown, OomEvent, PhaseMemory
from oomdoctor.records.planned.plan import CardPick, CardPlan, SweepAnswer
from oomdoctor.records.planned.searched import FewestAnswer, FewestLine, SolveAnswer, SolveLine
from oomdoctor.records.report import Report
from oomdoctor.records.result import Failure, ProbeResult

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


_SCALARS = (str, int, float, bool)


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


def result_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then a row a result. A heading is the path of the key in JSON.

    `place` is the place in the ranking, from 1.
    """
    place = {key: number for number, key in enumerate(report.ranking, 1)}
    paths = list(_paths())
    yield ["place", *(".".join(path) for path in paths)]
    for result in report.results:
        yield [place.get(result.key), *(_value(result, path) for path in paths)]


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
        elif field.name == "notes" or _is_scalar(get_type_hints(ProbeResult)[field.name]):
            yield (field.name,)


def _is_scalar(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return all(_is_scalar(arg) for arg in get_args(hint))
    return get_origin(hint) is Literal or hint is type(None) or hint in _SCALARS


def _value(record: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if record is None:
            return None
        record = getattr(record, name) if is_dataclass(record) else record.get(name)
    return record
