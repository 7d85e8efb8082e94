"""A report as CSV: how a value of its rows becomes a cell."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from oomdoctor.render.pages import rows_of
from oomdoctor.render.text import one_line

if TYPE_CHECKING:
    from oomdoctor.records.report import Report
    from oomdoctor.render.formats import Style


def render(report: Report, style: Style) -> str:
    """A row a result, diagnosis, job, card, sweep point or line of code, whatever the style.

    Sizes are integers in bytes, unknown is empty.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([csv_cell(value) for value in row] for row in rows_of(report))
    return out.getvalue()


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
