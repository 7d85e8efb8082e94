"""Memory against throughput: which sizes are drawn, and which of them nothing beats."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_gpu import gpu_report
from example_plans import plan_report

from oomdoctor.records.job.result import Try
from oomdoctor.render.charts.frontier_chart import Point, front, frontier_chart, points_of
from oomdoctor.units import GIB


def point(memory: int, speed: float, label: str = "x") -> Point:
    return Point(label, "lora", 1, memory, speed, None, str(speed), True, False)


@pytest.mark.parametrize(
    ("drawn", "best"),
    [
        ([(1, 10.0)], [(1, 10.0)]),
        ([(1, 10.0), (2, 20.0)], [(1, 10.0), (2, 20.0)]),
        ([(1, 20.0), (2, 10.0)], [(1, 20.0)]),
        ([(3, 30.0), (1, 10.0), (2, 5.0)], [(1, 10.0), (3, 30.0)]),
        ([(2, 20.0), (2, 10.0)], [(2, 20.0)]),  # as much memory, and slower
        ([(1, 20.0), (2, 20.0)], [(1, 20.0)]),  # as fast, with more memory
    ],
)
def test_nothing_beats_the_front(drawn, best) -> None:
    assert [(one.memory, one.speed) for one in front([point(*one) for one in drawn])] == best


def test_nothing_on_the_front_is_beaten_and_everything_else_is() -> None:
    points = [point(memory * 37 % 101, float(memory * 53 % 97)) for memory in range(1, 90)]
    best = front(points)

    def beaten(one: Point) -> bool:
        return any(
            (other.memory <= one.memory and other.speed > one.speed)
            or (other.memory < one.memory and other.speed >= one.speed)
            for other in points
        )

    assert best and not any(map(beaten, best))
    assert all(beaten(one) for one in points if one not in best)


def test_every_size_that_fits_is_a_point() -> None:
    report = gpu_report()
    first = next(one for one in report.results if one.key == report.ranking[0])
    mine = [one for one in points_of(report) if one.label == first.label]
    assert [one.micro_batch for one in mine if one.chosen] == [first.micro_batch_size]
    tried = {one.micro_batch_size for one in first.tries if one.outcome == "fits"}
    assert {one.micro_batch for one in mine} == tried


def test_a_lower_bound_is_no_point() -> None:
    report = plan_report()
    first = next(one for one in report.results if one.outcome == "fits")
    extra = Try(1, "fits", GIB, 9.0, None, peak_is_lower_bound=True)
    known = Try(3, "fits", GIB, 9.0, None)
    changed = replace(first, tries=(extra, known))
    results = tuple(changed if one is first else one for one in report.results)
    sizes = {one.micro_batch for one in points_of(replace(report, results=results))}
    assert 3 in sizes and (1 not in sizes or first.micro_batch_size == 1)


def test_without_a_speed_there_is_no_chart() -> None:
    report = plan_report()
    still = tuple(replace(one, tokens_per_s=None) for one in report.results)
    assert frontier_chart(replace(report, results=still)) is None
    assert frontier_chart(replace(report, results=())) is None


def test_the_numbers_say_what_is_drawn() -> None:
    chart = frontier_chart(gpu_report())
    assert chart is not None
    assert len(chart.grid.rows) == len(points_of(gpu_report()))
    assert all(len(row) == len(chart.grid.columns) for row in chart.grid.rows)
