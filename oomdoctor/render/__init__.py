"""A report to text: a table for people, documents for programs. Nothing here prints."""

from __future__ import annotations

from typing import Literal

from oomdoctor.records.report import Report
from oomdoctor.render.diagnosis import diagnoses_csv, diagnosis_sections
from oomdoctor.render.document import to_csv, to_json, to_markdown
from oomdoctor.render.plan_csv import plan_csv
from oomdoctor.render.table import to_plain, to_terminal
from oomdoctor.render.view import report_sections

ReportFormat = Literal["table", "json", "markdown", "csv"]


def render_report(
    report: Report,
    format: ReportFormat,
    *,
    terminal: bool,
    width: int,
    color: bool,
    verbose: bool,
    signs: bool = True,
) -> str:
    """The report as text that ends with a newline.

    `terminal`, `width` and `color` concern the table only: without a terminal it has full-width
    plain rows. `verbose` concerns the table and markdown; JSON and CSV always hold everything.
    Without `signs` a spread is written in ASCII.
    """
    if format == "json":
        return to_json(report)
    explained = report.command == "explain"
    if format == "csv":
        return _csv(report)
    fancy = signs and (terminal or format == "markdown")
    sections = (
        diagnosis_sections(report, verbose=verbose)
        if explained
        else report_sections(report, verbose=verbose, plus_minus="±" if fancy else "+-")
    )
    if format == "markdown":
        return to_markdown(sections)
    if terminal:
        return to_terminal(sections, width=width, color=color)
    return to_plain(sections)


def _csv(report: Report) -> str:
    if report.command == "explain":
        return diagnoses_csv(report)
    # A plan for several cards has no results of its own.
    return plan_csv(report) if report.cards and not report.results else to_csv(report)
