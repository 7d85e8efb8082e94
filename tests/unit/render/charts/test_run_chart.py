"""Memory over time of a run, as a picture in its page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.charts.drawing import svg, svg_part
from oomdoctor.render.charts.run_chart import run_chart
from oomdoctor.render.formats import Style

STORED = Path(__file__).parents[4] / "docs" / "reports" / "run-4090.json"


def stored() -> Report:
    return loads(Report, STORED.read_text(encoding="utf-8"))


def test_the_peaks_and_the_limit_are_those_of_the_report() -> None:
    chart = run_chart(stored())
    assert chart is not None and chart.about == ""
    assert chart.says == (
        "Tensors took at most 47.6 GiB, and the allocator reserved at most 48.9 GiB; the GPU has "
        "23.1 GiB for it."
    )
    for text in (svg(chart), svg_part(chart, "narrow", 1, {})):
        assert "23.1 GiB available" in text and "optimizer steps that ended" in text


def test_a_row_is_the_highest_point_between_two_ends_of_steps() -> None:
    report = stored()
    (rank,) = report.ranks
    steps = {point.step for point in rank.memory}
    chart = run_chart(report)
    assert chart is not None and len(chart.grid.rows) == len(steps)
    assert "47.6 GiB" in {row[1] for row in chart.grid.rows}


def test_the_page_draws_it_and_has_no_letters_for_it() -> None:
    page = render_report(stored(), "html", Style())
    assert "23.1 GiB available" in page and "ends of steps" not in page
    assert "ends of steps" in render_report(stored(), "table", Style())


def test_a_run_whose_memory_was_not_followed_has_no_chart() -> None:
    report = stored()
    ranks = tuple(replace(rank, memory=rank.memory[:1]) for rank in report.ranks)
    assert run_chart(replace(report, ranks=ranks)) is None
