"""A report to text: a table for people, documents for programs. Nothing here prints.

A renderer is imported when its format is asked for: a command that lists cards needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from oomdoctor.records.report import Report
    from oomdoctor.render.blocks import Section

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
        from oomdoctor.render.formats.document import to_json

        return to_json(report)
    if format == "csv":
        return _csv(report)
    fancy = signs and (terminal or format == "markdown")
    sections = _sections(report, verbose=verbose, plus_minus="±" if fancy else "+-")
    if format == "markdown":
        from oomdoctor.render.formats.document import to_markdown

        return to_markdown(sections)
    from oomdoctor.render.formats.table import to_plain, to_terminal

    return to_terminal(sections, width=width, color=color) if terminal else to_plain(sections)


def _sections(report: Report, *, verbose: bool, plus_minus: str) -> list[Section]:
    if report.command == "explain":
        from oomdoctor.render.diagnosis.page import diagnosis_sections

        return diagnosis_sections(report, verbose=verbose)
    from oomdoctor.render.report.page import report_sections

    return report_sections(report, verbose=verbose, plus_minus=plus_minus)


def _csv(report: Report) -> str:
    if report.command == "explain":
        from oomdoctor.render.diagnosis.table import diagnoses_csv

        return diagnoses_csv(report)
    if report.cards and not report.results:  # a plan for several cards has no results of its own
        from oomdoctor.render.formats.plan_csv import plan_csv

        return plan_csv(report)
    from oomdoctor.render.formats.document import to_csv

    return to_csv(report)
