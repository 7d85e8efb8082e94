"""The parts of a peak add up to what decides whether a rung fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from example_gpu import gpu_report
from example_plans import plan_report
from example_reports import cpu_report

from oomdoctor.records.codec import loads
from oomdoctor.records.job.result import ProbeResult, Try
from oomdoctor.records.report.report import Report
from oomdoctor.render.charts.frontier_chart import frontier_chart
from oomdoctor.render.charts.memory_chart import memory_chart
from oomdoctor.render.charts.parts import PART_WORDS, parts_in, peaks_of
from oomdoctor.units import GIB

REPORTS = Path(__file__).parents[4] / "docs" / "reports"


def stored(name: str) -> Callable[[], Report]:
    return lambda: loads(Report, (REPORTS / f"{name}.json").read_text(encoding="utf-8"))


EXAMPLES = [gpu_report, plan_report, cpu_report, stored("plan-a100"), stored("probe-cpu")]


@pytest.mark.parametrize("make", EXAMPLES)
def test_parts_add_up_to_the_deciding_peak(make) -> None:
    report = make()
    by_key = {result.key: result for result in report.results}
    peaks = peaks_of(report)
    assert peaks
    for peak in peaks:
        assert sum(size for _, size in peak.parts) == peak.total
        assert all(size >= 0 for _, size in peak.parts)
        assert set(dict(peak.parts)) <= set(PART_WORDS)
        if not peak.expected:
            assert peak.total == by_key[peak.key].deciding_peak_bytes()


def test_what_fits_comes_first_best_first() -> None:
    report = gpu_report()
    keys = [peak.key for peak in peaks_of(report)]
    assert tuple(keys[: len(report.ranking)]) == report.ranking
    fits = [peak.fits for peak in peaks_of(report)]
    assert fits == sorted(fits, reverse=True)


def test_a_rung_that_ran_out_shows_what_was_predicted() -> None:
    (expected,) = (peak for peak in peaks_of(gpu_report()) if peak.expected)
    assert expected.label == "full-bf16" and not expected.fits


def test_without_a_breakdown_tensors_are_one_part() -> None:
    report = plan_report()
    bare = tuple(replace(one, breakdown=None) for one in report.results)
    peaks = peaks_of(replace(report, results=bare))
    assert "whole" in parts_in(peaks) and "weights" not in parts_in(peaks)
    assert all(sum(size for _, size in peak.parts) == peak.total for peak in peaks)


def test_rungs_are_compared_at_one_micro_batch_size() -> None:
    """A lean rung that was given a larger micro-batch size may have the higher bar."""
    first, *others = (r for r in plan_report().results if r.outcome == "fits")
    second = others[0]

    def at(result: ProbeResult, size: int, peak: int, alone: int | None) -> ProbeResult:
        known = ((size, peak), (1, alone))
        tries = tuple(Try(s, "fits", p, 1.0, None) for s, p in known if p is not None)
        return replace(result, micro_batch_size=size, peak_device_bytes=peak, tries=tries)

    lean, other = at(first, 16, 20 * GIB, 13 * GIB), at(second, 4, 19 * GIB, 18 * GIB)
    report = replace(plan_report(), results=(lean, other), ranking=(lean.key, other.key))
    peaks = peaks_of(report)
    assert [peak.size_words for peak in peaks] == ["mb 16", "mb 4"]
    assert [peak.at_one for peak in peaks] == [13 * GIB, 18 * GIB]
    told = f"At micro-batch size 1, {lean.label} needs the least memory, 13.0 GiB."
    for make in (memory_chart, frontier_chart):
        chart = make(report)
        assert chart is not None and told in chart.says
    unknown = replace(report, results=(at(first, 16, 20 * GIB, None), other))
    for make in (memory_chart, frontier_chart):
        chart = make(unknown)
        assert chart is not None and "least" not in chart.says


def test_the_caption_says_what_is_drawn_and_what_is_usable() -> None:
    chart = memory_chart(plan_report())
    assert chart is not None
    assert chart.says.startswith("Peak memory of ") and " by category; " in chart.says
