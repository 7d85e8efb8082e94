"""The chart of a step: bands that add up to what was allocated, and where the peak is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_pages import followed
from example_plans import plan_report

from oomdoctor.records.job.measurement import CurvePhase, MemoryCurve
from oomdoctor.render.charts.drawing import svg
from oomdoctor.render.charts.step import bands_of, step_charts
from oomdoctor.units import GIB, format_bytes


def test_bands_add_up_to_what_was_allocated() -> None:
    report = followed()
    for result in report.results:
        bands = bands_of(report, result)
        if result.measurement is None:
            assert bands is None
            continue
        assert bands is not None and result.measurement.curve is not None
        for moment, total in enumerate(bands.curve.allocated_bytes):
            assert sum(own[moment] for own in bands.sizes.values()) == total
        assert bands.curve is result.measurement.curve
        assert len(bands.edges) == len(bands.curve.allocated_bytes) + 1
        assert list(bands.edges) == sorted(set(bands.edges))


def test_spans_cover_every_moment_once() -> None:
    report = followed()
    bands = next(b for one in report.results if (b := bands_of(report, one)) is not None)
    covered = [moment for span in bands.spans for moment in range(span.first, span.end)]
    assert covered == list(range(len(bands.curve.allocated_bytes)))
    assert bands.spans[0].begins == bands.edges[0] and bands.spans[-1].ends == bands.edges[-1]


def test_the_best_is_open_and_says_what_holds_the_peak() -> None:
    report = followed()
    first, *others = step_charts(report)
    assert not first.folded and all(chart.folded for chart in others)
    by_key = {result.key: result for result in report.results}
    best = by_key[report.ranking[0]]
    assert first.about == best.label
    assert best.measurement is not None and best.measurement.curve is not None
    peak = best.measurement.curve.allocated_bytes[best.measurement.curve.peak]
    assert format_bytes(peak) in first.says and "forward pass" in first.says
    assert sum("(peak)" in row[0] for row in first.grid.rows) == 1


def test_what_tensors_may_take_leaves_out_the_context() -> None:
    report = followed()
    result = next(one for one in report.results if one.measurement is not None)
    assert result.measurement is not None and report.budget is not None
    changed = replace(result, measurement=replace(result.measurement, overhead_bytes=3 * GIB))
    bands = bands_of(report, changed)
    assert bands is not None and bands.limit == report.budget.usable_bytes - 3 * GIB


def test_without_a_curve_there_is_no_chart() -> None:
    assert step_charts(plan_report()) == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_curve_of_a_moment_is_drawn(count: int) -> None:
    report = followed()
    phases = (CurvePhase("load", "load", 0),)
    tiny = MemoryCurve(count, tuple(range(count)), (7,) * count, {}, phases, 0)
    result = next(one for one in report.results if one.measurement is not None)
    assert result.measurement is not None
    changed = replace(result, measurement=replace(result.measurement, curve=tiny))
    (chart,) = step_charts(replace(report, results=(changed,), ranking=(changed.key,)))
    assert "peak 7 B" in svg(chart)
