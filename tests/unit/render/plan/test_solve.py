"""The tables of --solve, and the sentences below them."""

from __future__ import annotations

from dataclasses import replace

from example_plans import plan_report, solve_report, sweep_report

from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style


def page(report: Report, *, verbose: bool = False) -> str:
    return render_report(report, "table", Style(width=80, verbose=verbose))


def test_a_next_value_is_promised_only_where_there_is_one() -> None:
    report = solve_report()
    assert report.solve is not None
    assert "was simulated, and so was the next one up, which does not fit." in page(report)
    whole = tuple(line for line in report.solve.lines if line.limited_by is not None)
    at_the_limit = page(replace(report, solve=replace(report.solve, lines=whole)))
    assert "Each value that fits was simulated.\n" in at_the_limit
    assert "next one up" not in at_the_limit


def test_only_a_ladder_is_ranked() -> None:
    assert "ranked by throughput" in page(plan_report(), verbose=True)
    for report in (solve_report(), sweep_report()):
        assert "recipe default\n" in page(report, verbose=True)
        assert "ranked by" not in page(report, verbose=True)
