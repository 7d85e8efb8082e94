"""The chart of a sweep: a line a rung, on each card."""

from __future__ import annotations

from dataclasses import replace

from example_plans import plan_report, sweep_report

from oomdoctor.render.charts.sweep import height_of, sweep_charts, top_of
from oomdoctor.units import format_bytes


def test_each_card_has_a_chart_with_every_known_peak() -> None:
    report = sweep_report()
    assert report.sweep is not None
    charts = sweep_charts(report)
    assert [chart.folded for chart in charts] == [number > 0 for number in range(len(charts))]
    names = {line.card for line in report.sweep.lines if len(line.peaks) > 1}
    assert len(charts) == len(names)
    text = "\n".join(cell for chart in charts for row in chart.grid.rows for cell in row)
    for line in report.sweep.lines:
        for peak in line.peaks:
            height = height_of(peak)
            assert height is None or format_bytes(height) in text


def test_a_single_value_is_no_sweep() -> None:
    report = sweep_report()
    assert report.sweep is not None
    one = replace(report.sweep, values=report.sweep.values[:1])
    assert sweep_charts(replace(report, sweep=one)) == []
    assert sweep_charts(plan_report()) == []


def test_the_chart_never_ends_in_the_middle_of_a_marker() -> None:
    assert top_of([10, 20], 100) > 100
    assert top_of([10, 150], 100) > 150 * 1.04
    assert top_of([10, 161], 100) > 161 * 1.04  # just above where charts end
    assert top_of([10, 400], 100) == 160  # far above: its line leaves the chart
    assert top_of([300, 400], 100) == 160
