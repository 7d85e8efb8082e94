"""A report as CSV: which rows it has, and how a value becomes a cell."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

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
    writer.writerows([csv_cell(value) for value in row] for row in _rows(report))
    return out.getvalue()


def _rows(report: Report) -> Iterable[Iterable[Any]]:
    if report.command == "explain":
        from oomdoctor.render.diagnosis.diagnoses_csv import diagnosis_rows

        return diagnosis_rows(report)
    if report.command == "triage":
        from oomdoctor.render.triage.jobs_csv import triage_rows

        return triage_rows(report)
    if report.gathered:
        from oomdoctor.render.triage.gathered import gathered_rows

        return gathered_rows(report)
    if report.diff is not None:
        from oomdoctor.render.history.diff_csv import diff_rows

        return diff_rows(report.diff)
    if report.command == "snapshot":
        from oomdoctor.render.snapshot.blocks_csv import block_rows

        return block_rows(report)
    if report.cards and not report.results:  # a plan for several cards has no results
        from oomdoctor.render.report.plan.csv_rows import plan_rows

        return plan_rows(report)
    from oomdoctor.render.report.results_csv import result_rows

    return result_rows(report)


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
