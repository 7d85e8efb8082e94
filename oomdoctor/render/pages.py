"""The page of each verb, one row each: its sections, its rows as CSV, its parts for a browser.

Text, markdown, CSV and HTML all read this table. What it names is imported when it is needed, so no
command pays for the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from oomdoctor.render import blocks
from oomdoctor.render.blocks import Look, Part, Section

if TYPE_CHECKING:
    from oomdoctor.records.report.report import Report

_RESULTS = "plan.csv_rows:result_rows"


@dataclass(frozen=True, slots=True)
class Page:
    """What the reports of some verbs look like; functions are `module:name` in oomdoctor.render.

    After `sections(report, look)` stand errors, warnings and the next commands, unless these are
    the `whole` page. `rows(report)` are the rows as CSV. `parts(report)` are those of a page
    for a browser, by default the first section and the others. A report without what it `needs`,
    such as one of an error, gets the page of a survey.
    """

    commands: tuple[str, ...]
    sections: str
    rows: str = _RESULTS
    parts: str | None = None
    needs: str | None = None
    whole: bool = False


SURVEY = Page(
    ("probe", "plan"),
    "ladder_page:report_sections",
    "plan.csv_rows:survey_rows",
    "ladder_page:report_parts",
    whole=True,
)
PAGES = (
    Page(
        ("probe",),
        "probe_calibration_page:calibration_sections",
        "probe_calibration_page:term_rows",
        needs="calibration",
    ),
    SURVEY,
    Page(("explain",), "explain_page:answer_sections", "explain_page:diagnosis_rows"),
    Page(("triage",), "triage_page:triage_sections", "triage_page:triage_rows"),
    Page(("show",), "triage_page:gathered_sections", "triage_page:gathered_rows", needs="gathered"),
    Page(("run",), "run_page:run_sections", "run_page:rank_rows"),
    Page(("check",), "check_page:check_sections", "check_page:check_rows"),
    Page(("diff",), "diff_page:diff_sections", "diff_page:diff_rows", needs="diff"),
    Page(
        ("snapshot",),
        "snapshot.snapshot_page:snapshot_sections",
        "snapshot.snapshot_page:block_rows",
    ),
    Page(("watch",), "watch_page:watch_sections"),
)


def page_of(report: Report) -> Page:
    """The page of a report: that of its verb, or of a survey."""
    for page in PAGES:
        if report.command in page.commands and (not page.needs or getattr(report, page.needs)):
            return page
    return SURVEY


def sections_of(report: Report, look: Look) -> list[Section]:
    """The report as sections."""
    page = page_of(report)
    sections: list[Section] = _named(page.sections)(report, look)
    if page.whole:
        return sections
    closing = (blocks.error_sections, blocks.warning_sections, blocks.next_sections)
    return [*sections, *(section for make in closing for section in make(report))]


def rows_of(report: Report) -> Iterable[Iterable[Any]]:
    """The report as rows of CSV, the headings first."""
    rows: Iterable[Iterable[Any]] = _named(page_of(report).rows)(report)
    return rows


def parts_of(report: Report) -> list[Part]:
    """The parts of the page for a browser, with all the charts that they may show."""
    page = page_of(report)
    if page.parts is not None:
        parts: list[Part] = _named(page.parts)(report)
        return parts
    # A page has room for all that is known: it cannot be asked for more.
    first, *others = sections_of(report, Look(verbose=True, drawn=True))
    chart = Part("memory", "Memory", charts=("run", "request"))
    return [Part("summary", "", (first,)), chart, Part("report", "Report", tuple(others))]


def _named(text: str) -> Any:
    module, _, name = text.partition(":")
    return getattr(import_module(f"oomdoctor.render.{module}"), name)
