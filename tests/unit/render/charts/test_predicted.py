"""Predicted against measured: which peaks are compared, and by how much they differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_gpu import gpu_report
from example_plans import plan_report
from example_reports import cpu_report

from oomdoctor.records.job.result import PredictedPeak
from oomdoctor.render.charts.predicted import pairs_of, predicted_chart
from oomdoctor.units import GIB


def first_fitting():
    report = gpu_report()
    return report, next(one for one in report.results if one.key == report.ranking[0])


@pytest.mark.parametrize(
    ("predicted", "kind"),
    [
        (PredictedPeak(9 * GIB, 10 * GIB, 11 * GIB), "device"),
        (PredictedPeak(9 * GIB, 10 * GIB, None), "reserved"),
        (PredictedPeak(9 * GIB, None, None), "allocated"),
    ],
)
def test_peaks_of_the_same_kind_are_compared(predicted: PredictedPeak, kind: str) -> None:
    report, result = first_fitting()
    changed = replace(result, predicted=predicted)
    (pair,) = (one for one in pairs_of(replace(report, results=(changed,))))
    assert pair.kind == kind
    assert pair.measured == getattr(result, f"peak_{kind}_bytes")
    assert pair.predicted == getattr(predicted, f"peak_{kind}_bytes")
    assert pair.error == pytest.approx(pair.predicted / pair.measured - 1)


def test_the_largest_error_is_said() -> None:
    report, result = first_fitting()
    assert result.peak_device_bytes is not None
    half = PredictedPeak(None, None, result.peak_device_bytes // 2)
    chart = predicted_chart(replace(report, results=(replace(result, predicted=half),)))
    assert chart is not None and "-50.00%" in chart.says


@pytest.mark.parametrize("make", [plan_report, cpu_report])
def test_without_both_there_is_no_chart(make) -> None:
    report = make()
    bare = tuple(replace(one, predicted=None) for one in report.results)
    assert predicted_chart(replace(report, results=bare)) is None
