"""A report as CSV: the rows of records, and how a value becomes a cell."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from oomdoctor.render.pages import rows_of
from oomdoctor.render.text import one_line

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from oomdoctor.records.report.report import Report
    from oomdoctor.render.formats import Style

_SCALARS = (str, int, float, bool)
CsvColumn: TypeAlias = tuple[str, str | Callable[[Any], Any]]
"""A heading, and the path of its value in a record, such as `numbers.free_bytes` or `causes.0`."""


def named(names: Iterable[str], root: str = "") -> list[CsvColumn]:
    """Columns that are called like their keys; `root` is the path before the keys."""
    return [(name, f"{root}{name}") for name in names]


def scalars(record: type[DataclassInstance]) -> tuple[str, ...]:
    """The names of the fields of a record that are numbers, texts or flags."""
    hints = get_type_hints(record)
    return tuple(field.name for field in fields(record) if _is_scalar(hints[field.name]))


def _is_scalar(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return all(_is_scalar(part) for part in get_args(hint))
    return get_origin(hint) is Literal or hint is type(None) or hint in _SCALARS


def record_rows(columns: Sequence[CsvColumn], records: Iterable[Any]) -> Iterator[list[Any]]:
    """The headings, then a row a record: the value at each path, None where it leads nowhere."""
    yield [heading for heading, _ in columns]
    for record in records:
        yield [value_at(record, at) if isinstance(at, str) else at(record) for _, at in columns]


def value_at(record: Any, path: str) -> Any:
    """The value of a key of a key of a record; a number is a place in a tuple."""
    for name in path.split("."):
        if isinstance(record, tuple):
            record = record[int(name)] if int(name) < len(record) else None
        elif isinstance(record, Mapping):
            record = record.get(name)
        elif record is not None:
            record = getattr(record, name)
    return record


def as_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Rows of values as text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([csv_cell(value) for value in row] for row in rows)
    return out.getvalue()


def render(report: Report, style: Style) -> str:
    """A row a result, diagnosis, job, card, sweep point or line of code, whatever the style.

    Sizes are integers in bytes, unknown is empty.
    """
    return as_csv(rows_of(report))


def csv_cell(value: Any) -> str | int | float:
    """A value as a cell: unknown is empty, text is one line.

    A spreadsheet would run a text that starts like a formula, so an apostrophe goes in front.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    text = one_line("; ".join(value) if isinstance(value, tuple) else value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and text != "-" else text
