"""The memory of a GPU when a request failed: what held it, and what was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_diagnoses import GPU, explained

from oomdoctor.records.report.diagnosis import Numbers
from oomdoctor.render import render_report
from oomdoctor.render.charts.drawing import svg, svg_part
from oomdoctor.render.charts.request_chart import request_chart
from oomdoctor.render.formats import Style
from oomdoctor.units import GIB


def test_what_is_held_and_what_was_asked_for_add_up() -> None:
    """60 GiB of this process, 16 of another one, and 8 more: 4 too many."""
    chart = request_chart(explained(GPU))
    assert chart is not None and "80.0 GiB of the GPU" in chart.says
    assert chart.says.endswith("and the request, 4.00 GiB too much.")
    names = [column.name for column in chart.grid.columns]
    shown = dict(zip(names, chart.grid.rows[0], strict=True))
    assert shown == {
        "log": "rank1.out, rank 1",
        "tensors": "55.0 GiB",
        "cached": "1.00 GiB",
        "CUDA and libraries": "4.00 GiB",
        "other processes": "16.0 GiB",
        "requested": "8.00 GiB",
        "in all": "84.0 GiB",
    }
    for text in (svg(chart), svg_part(chart, "narrow", 1, {})):
        assert "80.0 GiB on the GPU" in text and "84.0 GiB" in text


def test_what_may_be_of_others_is_not_called_ours() -> None:
    numbers = replace(GPU.numbers, other_processes_bytes=None)
    chart = request_chart(explained(replace(GPU, numbers=numbers)))
    assert chart is not None
    names = [column.name for column in chart.grid.columns]
    assert "other" in names and "CUDA and libraries" not in names


def test_every_log_has_a_bar_and_those_of_another_size_are_left_out() -> None:
    other = replace(GPU, source="b.out", numbers=replace(GPU.numbers, capacity_bytes=40 * GIB))
    chart = request_chart(explained(GPU, replace(GPU, source="c.out", rank=None), other))
    assert chart is not None
    assert [row[0] for row in chart.grid.rows] == ["rank1.out, rank 1", "c.out"]


@pytest.mark.parametrize(
    "numbers",
    [
        Numbers(requested_bytes=GIB),
        Numbers(requested_bytes=GIB, capacity_bytes=GIB),
        Numbers(capacity_bytes=GIB, free_bytes=2 * GIB),
    ],
)
def test_there_is_no_chart_without_enough_numbers(numbers: Numbers) -> None:
    assert request_chart(explained(replace(GPU, numbers=numbers))) is None


def test_the_page_has_the_chart_and_no_bar_of_letters() -> None:
    text = render_report(explained(GPU), "html", Style())
    assert "<svg" in text and "[####" not in text and "! requested" not in text
    assert "<title>logs/rank1.out" in text
    assert "[####" in render_report(explained(GPU), "table", Style())
