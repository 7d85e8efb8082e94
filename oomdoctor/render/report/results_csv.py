"""The results of a survey as CSV: a row each, those that do not fit too."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.facts.phases import MEASURED
from oomdoctor.records.measurement import Breakdown, OomEvent, PhaseMemory
from oomdoctor.records.report import Report
from oomdoctor.records.result import Failure, ProbeResult

_SCALARS = (str, int, float, bool)


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
