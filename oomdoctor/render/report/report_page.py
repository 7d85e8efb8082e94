"""The page of `probe` and `plan`: which sections there are, and their order."""

from __future__ import annotations

from oomdoctor.records.report import Report
from oomdoctor.render.blocks import Facts, Note, Section
from oomdoctor.render.messages import error_sections, message_sections, next_sections
from oomdoctor.render.report.bars import bar_sections
from oomdoctor.render.report.details import detail_sections
from oomdoctor.render.report.header import header, headline
from oomdoctor.render.report.plan.sections import plan_sections
from oomdoctor.render.report.row_lengths import length_sections
from oomdoctor.render.report.rungs import rung_sections
from oomdoctor.render.report.yours import your_sections


def report_sections(report: Report, *, verbose: bool, plus_minus: str = "±") -> list[Section]:
    """The report as sections; `verbose` adds everything that is known about each rung.

    `plus_minus` is the sign before a spread: "±", or "+-" for ASCII.
    """
    return [
        Section("", (Note(headline(report), "strong"), *header(report))),
        *error_sections(report),
        *your_sections(report, verbose=verbose, plus_minus=plus_minus),
        *rung_sections(report, verbose=verbose, plus_minus=plus_minus),
        *bar_sections(report, verbose=verbose),
        *plan_sections(report, verbose=verbose),
        *file_sections(report),
        *length_sections(report.lengths, cards=len(report.cards), verbose=verbose),
        *message_sections("Warnings", [warning.message for warning in report.warnings]),
        *(detail_sections(report, plus_minus) if verbose else ()),
        *next_sections(report),
    ]


_OPENED_BY = {
    "snapshot": "`oomdoctor snapshot` reads it",
    "trace": "open it in Perfetto (ui.perfetto.dev) or chrome://tracing",
}


def file_sections(report: Report) -> list[Section]:
    """What was recorded, and what opens it."""
    pairs = tuple(
        (one.kind, f"{one.label} at micro-batch {one.micro_batch_size}: {one.path}; {opened}")
        for one in report.files
        for opened in (_OPENED_BY[one.kind],)
    )
    return [Section("Recorded", (Facts(pairs),))] if pairs else []
