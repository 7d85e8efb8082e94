"""Rungs with Unsloth on the page of a plan: they ran, and were not checked."""

from __future__ import annotations

from dataclasses import replace

from example_plans import plan_report, verified_report

from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style


def page(report: Report) -> str:
    return render_report(report, "table", Style(width=100, verbose=True))


def with_unsloth(report: Report) -> Report:
    """The first rung with Unsloth, which ran."""
    first, *others = report.results
    config = replace(first.config, library="unsloth")
    ran = replace(first, config=config, evidence="emulated", predicted=None)
    return replace(report, results=(ran, *others))


def test_the_head_counts_the_rungs_that_ran() -> None:
    report = with_unsloth(plan_report())
    simulated = sum(row.measurement is not None for row in report.results) - 1
    text = " ".join(page(report).split())
    assert f"1 config: Unsloth itself ran on the emulated card; {simulated} simulated" in text
    assert "Checked on the emulated card" not in page(report)
    assert "Unsloth" not in page(plan_report())


def test_they_are_not_among_the_checked_rungs() -> None:
    def checked(report: Report) -> int:
        return sum(row.evidence == "emulated" for row in report.results)

    plain = verified_report()
    own = with_unsloth(plain)
    assert f"{checked(plain)} of" in page(plain)
    assert f"{checked(own) - 1} of" in page(own)
