"""Which page a report gets: that of its verb, or the survey of `probe` and `plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomdoctor.records.report import Report
    from oomdoctor.render.blocks import Section


def sections_of(report: Report, *, verbose: bool, signs: bool) -> list[Section]:
    """The report as sections; without `signs` a spread is written in ASCII."""
    if report.command == "explain":
        from oomdoctor.render.diagnosis.diagnosis_page import diagnosis_sections

        return diagnosis_sections(report, verbose=verbose)
    if report.command == "triage":
        from oomdoctor.render.triage.triage_page import triage_sections

        return triage_sections(report, verbose=verbose)
    if report.gathered:
        from oomdoctor.render.triage.gathered import gathered_sections

        return gathered_sections(report, verbose=verbose)
    if report.command == "run":
        from oomdoctor.render.run.run_page import run_sections

        return run_sections(report, verbose=verbose, signs=signs)
    if report.diff is not None:
        from oomdoctor.render.history.diff import diff_sections

        return diff_sections(report, verbose=verbose, plus_minus="±" if signs else "+-")
    if report.command == "snapshot":
        from oomdoctor.render.snapshot.snapshot_page import snapshot_sections

        return snapshot_sections(report, verbose=verbose)
    if report.command == "watch":
        from oomdoctor.render.watch.watch_page import watch_sections

        return watch_sections(report, verbose=verbose, signs=signs)
    from oomdoctor.render.report.report_page import report_sections

    return report_sections(report, verbose=verbose, plus_minus="±" if signs else "+-")
