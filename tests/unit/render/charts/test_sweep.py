"""The chart of a sweep: a line per rung, on each card."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from example_plans import plan_report, sweep_report

from oomdoctor.render.charts import WIDTHS
from oomdoctor.render.charts.sweep import (
    end_of,
    even_ticks,
    free_place,
    height_at,
    height_of,
    sweep_charts,
    top_of,
)
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


def test_linear_growth_is_a_straight_line() -> None:
    figures = pytest.importorskip("matplotlib.figure")
    (chart, *_) = sweep_charts(sweep_report())
    figure = figures.Figure(figsize=(WIDTHS["wide"] / 72, 4), dpi=72)
    figure.canvas.draw()
    chart.draw(figure, "wide")
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")
    assert axes.get_xlim()[0] == 0 and axes.get_ylim()[0] == 0
    ticks = list(axes.get_xticks())
    assert len(ticks) > 2 and len({b - a for a, b in pairwise(ticks)}) == 1


def test_the_chart_ends_where_every_line_has_left_it() -> None:
    report = sweep_report()
    assert report.sweep is not None
    values, lines = report.sweep.values, report.sweep.lines
    assert end_of(lines, values, top=1 << 60) == values[-1]
    assert end_of(lines, values, top=0) in values[1:]
    assert end_of(lines, values, top=0) <= end_of(lines, values, top=1 << 60)


def test_ticks_are_at_even_distances() -> None:
    assert even_ticks(16384, 8) == list(range(0, 16385, 2048))
    assert even_ticks(6, 8) == [0, 1, 2, 3, 4, 5, 6]
    assert even_ticks(65536, 4) == [0, 16384, 32768, 49152, 65536]


def test_the_text_of_the_limit_stands_where_no_line_crosses_it() -> None:
    report = sweep_report()
    assert report.sweep is not None
    line = next(line for line in report.sweep.lines if len(line.peaks) > 1)
    first, last = line.peaks[0], line.peaks[-1]
    early = (
        replace(first, value=1, peak_device_bytes=50),
        replace(last, value=9, peak_device_bytes=58),
    )
    late = (
        replace(first, value=1, peak_device_bytes=10),
        replace(last, value=9, peak_device_bytes=58),
    )
    assert free_place([replace(line, peaks=late)], 9, 50, 100, 0.3) == 0
    assert free_place([replace(line, peaks=early[:1])], 9, 50, 100, 0.3) == 0
    crossed = replace(line, peaks=(early[0], replace(last, value=3, peak_device_bytes=70)))
    place = free_place([crossed], 9, 50, 100, 0.3)
    assert place * 9 >= 1.8  # behind the place where it leaves the band of the text
    assert height_at(crossed, 2) == 60 and height_at(crossed, 4) is None
